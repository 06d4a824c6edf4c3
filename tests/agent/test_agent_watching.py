"""A real device that is busy while a collector asks it: its counters arrive, none runs backwards, and in the end they
are the connection's own."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from softmrc.connection import connect, listen
from softmrc.fabric import Shape
from softmrc.ops.agent import collect
from softmrc.ops.agent.watch import FabricWatch

LOOKS = 20  # between which the device sent something
LIMIT_S = 120.0


def test_what_a_busy_device_is_asked_for_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(collect, "LEAST_AGE_S", 0.0)
    monkeypatch.setattr(collect, "TIMEOUT_S", LIMIT_S)
    ends, until = threading.Event(), time.monotonic() + LIMIT_S
    with (
        listen(memory=bytearray(1 << 20)) as listener,
        connect("127.0.0.1", listener.port) as connection,
        listener.accept(LIMIT_S),
    ):
        name = Path(connection.device.control).stem
        collector = collect.Collector()

        def counted() -> tuple[int, int]:
            """Bytes of messages that its queue pair has sent, and bytes that its planes have."""
            (seen,) = [one for one in collector.look() if one.name == name]
            (queue_pair,) = seen.queue_pairs
            return queue_pair["stats"]["bytes_sent"], sum(plane["bytes_sent"] for plane in seen.stats["planes"])

        def write() -> None:
            while not ends.is_set():
                connection.write(connection.remote[0], 0, bytes(1 << 18))

        writer = threading.Thread(target=write)
        found: list[Any] = [counted()]
        writer.start()
        try:
            while len(found) < LOOKS and writer.is_alive() and time.monotonic() < until:
                if (now := counted()) != found[-1]:
                    found.append(now)
        finally:
            ends.set()
            writer.join(LIMIT_S)
        last = counted()
        collector.close()
        assert len(found) == LOOKS and found[0][0] == 0
        for sent in zip(*found, last, strict=True):
            assert list(sent) == sorted(sent), "a counter ran backwards"
        assert last[0] == connection.qp.stats()["bytes_sent"] <= last[1]
        assert collector.failures == 0


def test_what_is_broken_stays_so_while_its_source_fails() -> None:
    class Failing:
        is_failing = False

        def broken(self) -> list[tuple[str, str, str, str]]:
            time.sleep(0.001)
            if self.is_failing:
                raise OSError(24, "no descriptors")
            return [("plane0.leaf1", "switch", "dead", "")]

    def wait_for(happened: Any) -> None:
        until = time.monotonic() + LIMIT_S
        while not happened() and time.monotonic() < until:
            time.sleep(0.001)
        assert happened()

    source = Failing()
    watch = FabricWatch("one", Shape(planes=1, hosts=2, hosts_per_leaf=1, spines=1), source)
    try:
        wait_for(lambda: watch.verdict()["broken"])
        before = watch.verdict()
        source.is_failing = True
        wait_for(lambda: watch.verdict()["error"])
        during = watch.verdict()
        assert during["broken"] == before["broken"] and during["changes"] == before["changes"]
        source.is_failing = False
        wait_for(lambda: not watch.verdict()["error"])
        after = watch.verdict()
        assert after["broken"] == before["broken"] and after["changes"] == before["changes"]
        assert [one["type"] for one in after["changes"]] == ["broken"]
    finally:
        watch.close()


@pytest.mark.parametrize("trouble", [OSError(24, "no descriptors"), MemoryError(), ValueError("half a file")])
def test_a_source_that_fails_once_is_asked_again(trouble: Exception) -> None:
    class Failing:
        calls = 0

        def broken(self) -> list[tuple[str, str, str, str]]:
            self.calls += 1
            if self.calls == 1:
                raise trouble
            time.sleep(0.001)
            return [("plane0.leaf1", "switch", "dead", "")]

    watch = FabricWatch("one", Shape(planes=1, hosts=2, hosts_per_leaf=1, spines=1), Failing())
    try:
        until = time.monotonic() + LIMIT_S
        while not watch.verdict()["broken"] and time.monotonic() < until:
            time.sleep(0.001)
        assert watch.verdict()["broken"] and not watch.verdict()["error"]
    finally:
        watch.close()
