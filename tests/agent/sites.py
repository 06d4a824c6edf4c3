"""An agent of this process, on a port of its own, while a test runs."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from softmrc.agent.collect import Collector
from softmrc.agent.guard import Listen
from softmrc.agent.watch import FabricWatch
from softmrc.agent.web import Site


@contextmanager
def a_site(watch: FabricWatch | None = None, page: bool = False, token: str = "") -> Iterator[int]:
    """The port at which it answers on loopback."""
    collector = Collector()
    listen = Listen("127.0.0.1", 0, token)
    app = Site(collector, watch, page).app(listen)
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, access_log=False, log_level="warning", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        for _ in range(500):
            if server.started:
                break
            time.sleep(0.01)
        assert server.started
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)
        collector.close()


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
