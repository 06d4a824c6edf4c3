"""Asking an agent over HTTP, header by header."""

from __future__ import annotations

import http.client

from softmrc_bench.page import a_site

__all__ = ["a_site", "get"]


def get(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
