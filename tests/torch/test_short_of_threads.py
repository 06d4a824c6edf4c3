"""A system without a thread to spare: an operation whose end could not be reported is not begun; a retry is right."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from softmrc.collectives import work
from softmrc.torch import detail
from softmrc.torch.dispatch import Dispatcher, OpInfo
from softmrc.torch.flight_recorder import OpRecord


class Begun(Exception):
    pass


class Here(Dispatcher):
    def _origin(self) -> Any:
        raise AssertionError("nothing has begun")


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("is_apart", [False, True])
def test_ranks_compare_nothing_that_could_not_begin(monkeypatch: pytest.MonkeyPatch, is_apart: bool) -> None:
    """Else the others, which know of it, would begin it without this rank."""
    monkeypatch.setattr(work, "_callback_threads", [])
    monkeypatch.setattr(work.shutdown, "at_exit", lambda *_: None)
    said: list[str] = []

    def compare(saying: str, *_: Any) -> None:
        said.append(saying)
        raise Begun

    monkeypatch.setattr(detail, "compare", compare)
    here, call = Here(), OpInfo("all_reduce")
    here._is_detailed, here._group = True, SimpleNamespace(size=2)

    def issue() -> None:
        if is_apart:
            here._dispatch_serial(call, torch.zeros(1), list)
        else:
            here._dispatch(call, [], [])

    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            issue()
    assert not said
    try:
        with pytest.raises(Begun):
            issue()
        assert said == ["all_reduce number 1"]
    finally:
        work.callback_thread().stop()


def test_no_operation_begins_whose_end_nobody_could_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the caller, which sees a failure, would be one operation ahead of the other ranks."""
    monkeypatch.setattr(work, "_callback_threads", [])
    monkeypatch.setattr(work.shutdown, "at_exit", lambda *_: None)
    here, numbers = Here(), []

    def begin(record: OpRecord) -> Any:
        numbers.append(record.sequence)
        raise Begun

    def issue() -> None:
        here._record_and_run(OpInfo("all_reduce"), [], [], True, begin)

    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", no_thread)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="new thread"):
                issue()
    assert not numbers and here._issued == [0, 0]
    try:
        with pytest.raises(Begun):
            issue()
        assert numbers == [1]
    finally:
        work.callback_thread().stop()
