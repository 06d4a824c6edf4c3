"""Threads that carry operations on, and operations that begin in them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.torch.told import Told

from softmrc.torch.crew import Crew
from softmrc.torch.deferred import Deferred


@pytest.fixture
def crews() -> Iterator[tuple[Crew, Crew]]:
    crew, starter = Crew("done"), Crew("start", most=1)
    yield crew, starter
    starter.close()
    crew.close()


def test_operations_begin_in_the_order_of_issue(crews: tuple[Crew, Crew]) -> None:
    _, starter = crews
    gate, order = threading.Event(), []
    first = Deferred(starter, gate.wait, lambda: order.append(1) or Told())
    second = Deferred(starter, int, lambda: order.append(2) or Told())
    assert starter.is_busy
    gate.set()
    for one in (first, second):
        with pytest.raises(TimeoutError):
            one.wait(0.05)
    assert order == [1, 2]


def test_what_goes_wrong_at_the_start_is_raised_in_wait(crews: tuple[Crew, Crew]) -> None:
    _, starter = crews

    def refuse() -> Told:
        raise RuntimeError("rank 3 is gone")

    refused = Deferred(starter, int, refuse)
    with pytest.raises(RuntimeError, match="rank 3"):
        refused.wait(10)
    assert refused.done


def test_a_crew_gives_a_waiting_job_a_thread(crews: tuple[Crew, Crew]) -> None:
    crew, _ = crews
    inner, outer = threading.Event(), threading.Event()
    crew.submit(lambda: inner.wait(10) and outer.set())
    crew.submit(inner.set)
    assert outer.wait(10)


@pytest.mark.parametrize("most", [1, 64])
def test_a_closed_crew_still_runs_what_it_is_given(most: int) -> None:
    """And not where it is given: who gives it may be the one that it waits for."""
    crew, go_on, ran = Crew("closed", most), threading.Event(), threading.Event()
    crew.submit(int)
    crew.close()
    crew.submit(lambda: go_on.wait(10) and ran.set())
    assert not ran.is_set()
    go_on.set()
    assert ran.wait(10)
    crew.close()
    assert not any(thread.is_alive() for thread in crew._threads)


def test_without_threads_jobs_are_done_where_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    crew, ran = Crew("poor"), []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    crew.submit(lambda: ran.append(1))
    assert ran == [1] and not crew.is_busy
    monkeypatch.undo()
    crew.submit(lambda: ran.append(2))
    crew.close()
    assert ran == [1, 2]
