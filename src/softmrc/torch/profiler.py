"""Operations in torch.profiler: `mrc:all_reduce` for the call that begins one, `mrc:wait` for waiting for its end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def profiler_range(title: str, tensors: Sequence[torch.Tensor] = ()) -> AbstractContextManager[Any]:
    """What is done in here is shown, with the tensors' shapes as its argument, where a profiler runs."""
    if not torch.autograd._profiler_enabled():
        return nullcontext()
    return torch.profiler.record_function(f"mrc:{title}", str([list(one.shape) for one in tensors]))
