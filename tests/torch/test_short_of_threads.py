"""A system without a thread to spare: what cannot be told of is not begun, so that to try again is right."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from softmrc.collectives import work
from softmrc.torch.issue import Call, Issuer
from softmrc.torch.record import Record


class Begun(Exception):
    pass


class Here(Issuer):
    def _origin(self) -> Any:
        raise AssertionError("nothing has begun")


def test_no_operation_begins_whose_end_nobody_could_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the caller, who is told that it failed, would be one operation ahead of the other ranks."""
    monkeypatch.setattr(work, "_heralds", [])
    monkeypatch.setattr(work.leaving, "at_exit", lambda *_: None)
    here, numbers = Here(), []

    def begin(record: Record) -> Any:
        numbers.append(record.sequence)
        raise Begun

    def issue() -> None:
        here._watched(Call("all_reduce"), [], [], True, begin)

    with monkeypatch.context() as short:
        short.setattr(
            threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError("can't start new thread"))
        )
        for _ in range(2):
            with pytest.raises(RuntimeError, match="new thread"):
                issue()
    assert not numbers and here._collectives == 0
    try:
        with pytest.raises(Begun):
            issue()
        assert numbers == [1]
    finally:
        work.herald().stop()
