"""Keeps `torch.compile` out of our Python code.

Torch calls a backend from C++ while it runs compiled programs (a DDP model's buffers, for one), and would then try to
compile what the backend does. `torch.compiler.disable` has the same effect, but takes seconds to import.
"""

from __future__ import annotations

from collections.abc import Iterable


def skip_dynamo(cls: type, names: Iterable[str]) -> None:
    """Neither these methods of a class nor anything that they call is compiled."""
    try:
        from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    except ImportError:  # another torch says it in other words
        return
    never = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    for name in names:
        set_code_exec_strategy(getattr(cls, name).__code__, never)
