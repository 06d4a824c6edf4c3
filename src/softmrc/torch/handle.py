"""What torch and its callers hold of a Work, so that no way of holding it loses it.

A Work in Python has a half in C++, and that half is all that C++ keeps when Python passes a Work to it, as DDP does in
`join`. The Python half, which alone knows how to wait, is then collected, and the C++ half waits for ever. One kind of
Work in C++ does keep the Python half: the one in which torch wraps what a group in Python returns to C++. So we pass
every Work through such a group. What comes back can wait and has a future, and knows nothing else; so it is made a
`Handle`, which asks the Work for the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from softmrc import _core
from softmrc.torch.skip_dynamo import skip_dynamo
from softmrc.torch.work import AsyncWork

FORWARDED = [name for name in vars(AsyncWork) if not name.startswith("_")]
FORWARDED += ["_source_rank", "_get_duration", "_get_op_type", "_get_sequence_number"]
Handle: Any = _core.lookalike(dist.Work, f"{__name__}.Handle")
_works: WeakKeyDictionary[Any, dist.Work] = WeakKeyDictionary()


class _Echo(dist.ProcessGroup):  # type: ignore[misc]
    """A group whose barrier is whatever Work its thread was given."""

    def __init__(self) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]
        self.given = threading.local()

    def barrier(self, opts: Any) -> dist.Work:  # type: ignore[override]
        return self.given.work


_echo, _options = _Echo(), dist.BarrierOptions()


def _wrapped(work: dist.Work) -> dist.Work:
    """What torch makes of a Work that a group in Python returns to C++."""
    _echo.given.work = work
    try:
        return dist.ProcessGroup.barrier(_echo, _options)
    finally:
        del _echo.given.work


def handle_of(work: dist.Work) -> dist.Work:
    """A Work that does what this one does, and keeps it alive for as long as anybody has it, in Python or in C++."""
    handle = _wrapped(work)
    handle.__class__ = Handle
    _works[handle] = work
    return handle


def _forward(name: str) -> Callable[..., Any]:
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        return getattr(_works[self], name)(*arguments, **named)

    return call


if _wrapped(_work := dist.Work()) is _work:
    raise ImportError(f"torch {torch.__version__} does not wrap a Work in Python: backend mrc needs torch 2.7 or later")
for _name in FORWARDED:
    setattr(Handle, _name, _forward(_name))
skip_dynamo(Handle, ["wait"])  # they all share one code
