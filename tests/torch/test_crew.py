"""Threads that carry operations on, and operations that begin in them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.torch.told import Told

from softmrc.torch.deferred import Deferred
from softmrc.torch.thread_pool import ThreadPool


@pytest.fixture
def crews() -> Iterator[tuple[ThreadPool, ThreadPool]]:
    crew, starter = ThreadPool("done"), ThreadPool("start", most=1)
    yield crew, starter
    starter.close()
    crew.close()


def test_operations_begin_in_the_order_of_issue(crews: tuple[ThreadPool, ThreadPool]) -> None:
    _, starter = crews
    gate, order = threading.Event(), []
    first = Deferred(starter, lambda: (gate.wait(10) and order.append(1)) or Told())
    second = Deferred(starter, lambda: order.append(2) or Told())
    assert starter.is_busy
    gate.set()
    for one in (first, second):
        with pytest.raises(TimeoutError):
            one.wait(0.05)
    assert order == [1, 2]


def test_what_goes_wrong_at_the_start_is_raised_in_wait(crews: tuple[ThreadPool, ThreadPool]) -> None:
    _, starter = crews

    def refuse() -> Told:
        raise RuntimeError("rank 3 is gone")

    refused = Deferred(starter, refuse)
    with pytest.raises(RuntimeError, match="rank 3"):
        refused.wait(10)
    assert refused.done


def test_a_crew_gives_a_waiting_job_a_thread(crews: tuple[ThreadPool, ThreadPool]) -> None:
    crew, _ = crews
    inner, outer = threading.Event(), threading.Event()
    crew.submit(lambda: inner.wait(10) and outer.set())
    crew.submit(inner.set)
    assert outer.wait(10)


@pytest.mark.parametrize("most", [1, 64])
def test_a_closed_crew_still_runs_what_it_is_given(most: int) -> None:
    """And not where it is given: who gives it may be the one that it waits for."""
    crew, go_on, ran = ThreadPool("closed", most), threading.Event(), threading.Event()
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

    crew, ran = ThreadPool("poor"), []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    crew.submit(lambda: ran.append(1))
    assert ran == [1] and not crew.is_busy
    monkeypatch.undo()
    crew.submit(lambda: ran.append(2))
    crew.close()
    assert ran == [1, 2]


def test_ctrl_c_while_a_thread_begins_costs_neither_order_nor_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        begin(thread)
        raise KeyboardInterrupt

    crew, gate, done = ThreadPool("one", most=1), threading.Event(), []
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        crew.submit(lambda: gate.wait(10) and done.append(1))
    monkeypatch.undo()
    assert crew.is_busy
    crew.submit(lambda: done.append(2))
    gate.set()
    crew.close()
    assert done == [1, 2] and crew._running == 0 and not crew.is_busy


def test_a_job_that_fails_leaves_its_thread_to_the_next(capfd: pytest.CaptureFixture[str]) -> None:
    crew, ran = ThreadPool("one", most=1), threading.Event()
    crew.submit(lambda: 1 / 0)
    crew.submit(ran.set)
    assert ran.wait(10)
    crew.close()
    assert "ZeroDivisionError" in capfd.readouterr().err and not crew.is_busy


@pytest.mark.parametrize("most", [1, 3, 64])
def test_many_give_jobs_while_it_closes_and_none_is_lost(most: int) -> None:
    crew, done = ThreadPool("many", most), []

    def give() -> None:
        for _ in range(200):
            crew.submit(lambda: done.append(1))

    givers = [threading.Thread(target=give) for _ in range(4)]
    for giver in givers:
        giver.start()
    crew.close()
    for giver in givers:
        giver.join()
    crew.close()
    assert len(done) == 800 and not crew.is_busy and crew._running == 0
