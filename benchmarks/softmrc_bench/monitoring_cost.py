"""What it costs a busy device to be watched: its goodput while an agent asks it, and while none does.

An agent asks twice a second, and what that costs drowns in what two rounds differ by anyway. So here it asks as often
as it can up to forty times a second, and the cost of one question is counted twice.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from typing import Any

from softmrc.connection import Connection, connect, listen
from softmrc.errors import InternalError

ROUND_S = 1.0
BYTES = 1 << 20
USUAL_PER_S, PAUSE_S = 2.0, 0.025


def _agent(folder: str, is_there: Any, watches: Any, ends: Any, looks: Any) -> None:
    """Another process, as an agent is."""
    os.environ["XDG_RUNTIME_DIR"] = folder
    from softmrc.ops.agent import collect

    collect.LEAST_AGE_S = 0.0
    collector = collect.Collector()
    is_there.set()
    while not ends.is_set():
        if watches.is_set():
            collector.look()
            looks.value += 1
        time.sleep(PAUSE_S)
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
    """The share of goodput that an agent takes: medians of rounds that take turns."""
    before = os.environ.get("XDG_RUNTIME_DIR")
    context = multiprocessing.get_context("spawn")
    is_there, watches, ends, looks = context.Event(), context.Event(), context.Event(), context.Value("i", 0)
    rates: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        agent = context.Process(target=_agent, args=(folder, is_there, watches, ends, looks))
        agent.start()
        try:
            accepted: list[Connection] = []
            planes = ["127.0.0.1", "127.0.0.2"]
            with listen("127.0.0.1", 0, memory=bytearray(BYTES), planes=planes) as listener:
                server = threading.Thread(target=lambda: accepted.append(listener.accept(30)), daemon=True)
                server.start()
                with connect("127.0.0.1", listener.port, planes=["127.0.0.3", "127.0.0.4"]) as connection:
                    server.join(30)
                    if not is_there.wait(60):
                        raise InternalError("the agent of this bench did not start")
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
    looks_per_s = looks.value / (rounds * ROUND_S)
    if not looks_per_s:
        raise InternalError("the agent of this bench has not asked the device once")
    return {
        "watch_cost": max(0.0, 1 - watched / alone) * USUAL_PER_S / looks_per_s,
        "unwatched_bps": alone,
        "watched_bps": watched,
        "looks_per_s": looks_per_s,
    }
