"""A device's control socket as docs/reference/control.md describes it, played by a thread."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

Answers = Callable[[dict[str, Any]], dict[str, Any] | bytes | None]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's devices are looked for."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "softmrc"


@pytest.fixture
def device(home: Path) -> Iterator[Pretended]:
    pretended = Pretended()
    with a_device(home, pretended):
        yield pretended


@contextmanager
def a_device(folder: Path, answers: Answers, name: str | None = None) -> Iterator[Path]:
    """Answers every request with what `answers` makes of it: an object, raw bytes, or None to hang up."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{name or f'{os.getpid()}-0'}.sock"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen(8)
    clients: list[socket.socket] = []

    def serve(client: socket.socket) -> None:
        with suppress(OSError), client, client.makefile("rwb") as lines:  # who asks may be gone
            for line in lines:
                answer = answers(json.loads(line))
                if answer is None:
                    return
                lines.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode() + b"\n")
                lines.flush()

    def admit() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            clients.append(client)
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    thread = threading.Thread(target=admit, daemon=True)
    thread.start()
    try:
        yield path
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        for client in clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        path.unlink(missing_ok=True)


class Pretended:
    """A device with two planes, a queue pair of four EVs, and a record of its requests."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.states = ["good", "good", "assumed_bad", "good"]
        self.up = [True, True]
        self.events: list[dict[str, Any]] = []
        self.forgotten = 0
        self.own = "127.0.0.1"
        self.peer = "127.0.0.2:4791"
        self.silent_evs: set[int] = set()
        self.values: list[int | str] = [0xC000 + i for i in range(4)]
        self.source_ports = [0xC000, 0xC001]

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request)
        handler = getattr(self, f"on_{request['op']}", None)
        if handler is None:
            return {"ok": False, "error": f"`op`: must be one of info, … (got {request['op']})"}
        return {"ok": True} | handler(request)

    def on_info(self, _: dict[str, Any]) -> dict[str, Any]:
        planes = [{"address": self.own, "interface": "", "link": "lo", "speed_bps": 0} for _ in self.up]
        own = {"protocol": 1, "pid": 4711, "number": 0, "program": "python train.py", "kind": "verbs"}
        return own | {"planes": planes}

    def on_stats(self, _: dict[str, Any]) -> dict[str, Any]:
        counters = {"packets_sent": 1000, "packets_received": 900, "bytes_sent": 4_000_000, "bytes_received": 3_000_000,
                    "bad_icrc": 0, "strangers": 0}  # fmt: skip
        state = {"is_link_up": True, "source_ports": self.source_ports}
        planes = [{"is_up": up, "is_admin_up": up} | state | counters for up in self.up]
        lanes = [{"turns": 5, "refused_bad_icrc": 0, "events_dropped": 0, "hold_ups": 1}]
        return {"planes": planes, "lanes": lanes, "queue_pairs": 1, "peers": 1, "regions": 0, "capture": None}

    def on_qps(self, _: dict[str, Any]) -> dict[str, Any]:
        evs = [
            {"ev": i, "value": self.values[i], "plane": i % 2, "state": state, "drops": 3 * (state == "assumed_bad")}
            | {"damping": 0, "is_spare": False}
            for i, state in enumerate(self.states)
        ]
        stats = {"packets_sent": 500, "packets_retransmitted": 7, "bytes_sent": 1, "bytes_placed": 2, "timeouts": 0}
        peer = {"number": 3, "planes": [self.peer]}
        row = {"qpn": 0x22, "lane": 0, "state": "rts", "dest_qpn": 0x11, "peer": peer, "bytes_in_flight": 4096,
               "smoothed_rtt_us": 31.5, "window_bytes": 65536, "stats": stats, "evs": evs}  # fmt: skip
        return {"qps": [row]}

    def on_deny(self, request: dict[str, Any], state: str = "denied") -> dict[str, Any]:
        evs = request.get("evs") if "evs" in request else [i for i in range(4) if i % 2 == request["plane"]]
        failed = [{"qpn": 0x22, "ev": ev, "error": f"`ev`: must be below 4 (got {ev})"} for ev in evs if ev >= 4]
        if failed and request.get("stop"):
            evs, failed = evs[: evs.index(failed[0]["ev"])], failed[:1]
        done = [ev for ev in evs if ev < 4]
        for ev in done:
            self.states[ev] = state
        return {"done": len(done), "failed": failed}

    def on_allow(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.on_deny(request, "good")

    def on_port(self, request: dict[str, Any]) -> dict[str, Any]:
        self.up[request["plane"]] = request["up"]
        return {"planes": self.on_stats({})["planes"]}

    def on_replace(self, _: dict[str, Any]) -> dict[str, Any]:
        return {}

    def on_events(self, request: dict[str, Any]) -> dict[str, Any]:
        (since,) = request.get("since", [0])  # one number a lane
        lost = max(0, self.forgotten - since)
        return {"events": self.events[max(since, self.forgotten) :], "next": [len(self.events)], "lost": lost}

    def on_probe(self, request: dict[str, Any]) -> dict[str, Any]:
        sent = [*request["evs"], 0].index(0)  # where an EV of 0 stands, nothing is sent any more
        for i, ev in enumerate(request["evs"][:sent]):
            if ev not in self.silent_evs:
                answer = {"psn": request["token"] + i, "plane": request["plane"], "ev": ev}
                self.tell("probe_answer", value=12_345_000, took=345, **answer)
        return {"asked": sent}

    def tell(self, kind: str, **more: Any) -> None:
        event = {"at": 1_700_000_000.25, "at_ps": 1, "type": kind, "qpn": 0, "plane": 0, "ev": 0, "psn": 0, "code": 0}
        self.events.append(event | {"value": 0, "text": f"{kind} happened"} | more)
