"""The measurements' own loops, where their timing is unlucky."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from softmrc.config import DeviceConfig
from softmrc.engine import COMPLETION
from softmrc.errors import InternalError
from softmrc_bench import half_open
from softmrc_bench.udp import Flow, sink

pytestmark = pytest.mark.process


class Queue:
    """A queue pair and its completion queue: what is posted completes when asked for, so many at a time."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.under_way = 0
        self.send_cq = self

    def post_write(self, *_: Any, **__: Any) -> None:
        self.under_way += 1

    def wait_array(self, _: float) -> np.ndarray:
        count = min(self.under_way, self.at_once)
        self.under_way -= count
        return np.zeros(count, dtype=COMPLETION)

    def stats(self) -> dict[str, int]:
        return {}


def flow_over(queue: Any) -> Flow:
    flow = object.__new__(Flow)
    flow.connection = SimpleNamespace(qp=queue, remote=[SimpleNamespace(rkey=1)])  # type: ignore[assignment]
    flow.source, flow.size = None, 1 << 20  # type: ignore[assignment]
    return flow


@pytest.mark.parametrize("at_once", [1, 3, 16])
@pytest.mark.parametrize("looks", range(8))
def test_time_may_run_out_at_any_moment(at_once: int, looks: int) -> None:
    """Also with nothing under way, which is what it did to `bench udp`."""

    def clock() -> Iterator[bool]:
        yield from [True] * looks
        while True:
            yield False

    ticks = clock()
    queue = Queue(at_once)
    done = flow_over(queue).write_while(lambda: next(ticks), message=1024, depth=16)
    assert queue.under_way == 0 and done >= 16 * bool(looks)


def test_writes_that_stop_are_an_error() -> None:
    with pytest.raises(InternalError, match="writes stopped"):
        flow_over(Queue(0)).write_while(lambda: True, message=1024, depth=4)


def test_a_connect_in_a_crowd_is_measured() -> None:
    """And they were pending: a handshake without a byte was refused, or is still pending."""
    with sink() as other:
        heard: list[dict[str, Any]] = []
        listening = SimpleNamespace(ask=other.ask, receive=lambda: heard.append(other.receive()))
        assert half_open.accept_ms(listening, tries=1, pending=100) > 0
        assert heard[0]["refused"] >= 100 - DeviceConfig().max_pending_per_address
    assert [figure.key for figure in half_open.FIGURES] == ["accept_under_attack_ms"]
