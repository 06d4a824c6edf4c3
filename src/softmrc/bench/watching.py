"""What it costs a busy device to be watched: its goodput while an agent asks it twice a second, and while none does."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from typing import Any

from softmrc.connection import Connection, connect, listen

ROUND_S = 1.0
BYTES = 1 << 20


def _agent(folder: str, watches: Any, ends: Any) -> None:
    """Another process, as an agent is."""
    os.environ["XDG_RUNTIME_DIR"] = folder
    from softmrc.agent.collect import Collector

    collector = Collector()
    while not ends.is_set():
        if watches.is_set():
            collector.look()
        time.sleep(0.5)
    collector.close()


def _goodput_bps(connection: Connection, seconds: float) -> float:
    """Writes of 1 MiB, one after the other's completion."""
    data = bytes(BYTES)
    start = time.monotonic()
    moved = 0
    while (now := time.monotonic()) < start + seconds:
        connection.write(connection.remote[0], 0, data)
        moved += BYTES
    return moved * 8 / (now - start)


def watch_cost(rounds: int = 10) -> dict[str, Any]:
    """The share of goodput that watching takes: medians of rounds that take turns."""
    before = os.environ.get("XDG_RUNTIME_DIR")
    context = multiprocessing.get_context("spawn")
    watches, ends = context.Event(), context.Event()
    rates: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        agent = context.Process(target=_agent, args=(folder, watches, ends))
        agent.start()
        try:
            accepted: list[Connection] = []
            planes = ["127.0.0.1", "127.0.0.2"]
            with listen("127.0.0.1", 0, memory=bytearray(BYTES), planes=planes) as listener:
                server = threading.Thread(target=lambda: accepted.append(listener.accept(30)), daemon=True)
                server.start()
                with connect("127.0.0.1", listener.port, planes=["127.0.0.3", "127.0.0.4"]) as connection:
                    server.join(30)
                    _goodput_bps(connection, ROUND_S)
                    for number in range(2 * rounds):
                        is_watched = number % 2 == 1
                        (watches.set if is_watched else watches.clear)()
                        rates[is_watched].append(_goodput_bps(connection, ROUND_S))
                for one in accepted:
                    one.close()
        finally:
            ends.set()
            agent.join(10)
            os.environ.pop("XDG_RUNTIME_DIR")
            if before is not None:
                os.environ["XDG_RUNTIME_DIR"] = before
    alone, watched = (statistics.median(rates[key]) for key in (False, True))
    return {"watch_cost": max(0.0, 1 - watched / alone), "unwatched_bps": alone, "watched_bps": watched}
