"""A client of control sockets, as small as one can be."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Client:
    """One connection; each call is one request."""

    def __init__(self, path: str | Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("rb")

    def line(self, line: bytes) -> dict[str, Any]:
        self.socket.sendall(line + b"\n")
        return json.loads(self.file.readline())

    def ask(self, op: str, **more: Any) -> dict[str, Any]:
        """The answer, of which all is well."""
        answer = self.line(json.dumps({"op": op, **more}).encode())
        assert answer.pop("ok"), answer
        return answer

    def refused(self, op: str, **more: Any) -> str:
        """Why it is not done."""
        answer = self.line(json.dumps({"op": op, **more}).encode())
        assert not answer["ok"], answer
        return answer["error"]

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
