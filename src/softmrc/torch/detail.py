"""What `TORCH_DISTRIBUTED_DEBUG=DETAIL` asks for: every rank says what it is about to do before a collective begins.

Ranks that disagree raise at the call, all of them and with both sayings, and the group lives on. Shapes are compared as
well, which the transport, for which lengths are enough, does not see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

SAYING_BYTES = 512  # what does not fit is distinguished by its hash

Exchange = Callable[[np.ndarray, np.ndarray], Any]  # everybody's part into the whole; an operation under way


class MismatchError(RuntimeError):
    """Ranks are about to do different things."""


def saying(name: str, sequence: int, tensors: Sequence[torch.Tensor], more: str) -> str:
    """An operation in words that all ranks must agree on."""
    shapes = ", ".join(
        f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)} on {one.device.type}" for one in tensors
    )
    said = f"{name} number {sequence}" + (f" of {shapes}" if shapes else "") + (f", {more}" if more else "")
    return said if len(said.encode()) <= SAYING_BYTES else f"{said[:400]} … ({_digest(said)})"


def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compare(said: str, size: int, exchange: Exchange) -> None:
    """Tell the others, hear them, and raise if anybody says something else."""
    mine = np.zeros(SAYING_BYTES, np.uint8)
    text = said.encode()[:SAYING_BYTES]
    mine[: len(text)] = np.frombuffer(text, np.uint8)
    whole = np.zeros(SAYING_BYTES * size, np.uint8)
    exchange(mine, whole).wait()
    sayings = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in whole.reshape(size, SAYING_BYTES)]
    for rank, other in enumerate(sayings):
        if other != sayings[0]:
            raise MismatchError(
                f"Detected mismatch between collectives on ranks. Rank 0 is running collective: {sayings[0]}, "
                f"but Rank {rank} is running collective: {other}"
            )
