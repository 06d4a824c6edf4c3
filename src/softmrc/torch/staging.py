"""A tensor as memory for the transport: where it lies, if it is contiguous CPU memory; otherwise by way of a buffer."""

from __future__ import annotations

from typing import Any

import torch

from softmrc.collectives import Block, DType

DTYPES: dict[torch.dtype, DType] = {getattr(torch, dtype.name.lower()): dtype for dtype in DType}


class StagedTensor:
    """One tensor of an operation, of which every rank has one part, or as many as it says."""

    __slots__ = ("buffer", "is_staged", "on_device", "parts", "tensor")

    def __init__(self, tensor: torch.Tensor, parts: int = 1) -> None:
        if tensor.layout != torch.strided:
            raise RuntimeError(f"backend mrc takes dense tensors, not {tensor.layout}")
        self.tensor = tensor.detach()
        self.parts = parts
        self.on_device = self.is_staged = tensor.device.type != "cpu"  # its buffers: see `passage`
        self.buffer = self.tensor
        if not self.on_device and not self.is_flat:
            self.stage()

    @property
    def is_flat(self) -> bool:
        """Whether its elements lie one after the other, as they are."""
        return self.tensor.is_contiguous() and not self.tensor.is_conj() and not self.tensor.is_neg()

    def stage(self) -> None:
        """Go by way of a buffer. Before anybody has asked for the memory."""
        self.is_staged = True
        self.buffer = torch.empty(self.tensor.shape, dtype=self.tensor.dtype)

    def copy_in(self) -> None:
        self.buffer.copy_(self.tensor)

    def copy_out(self) -> None:
        self.tensor.copy_(self.buffer)


def block(memory: Any) -> Any:
    """Contiguous CPU memory to be moved, or a list of it; what the transport has no name for travels as bytes."""
    if isinstance(memory, list):
        return [block(one) for one in memory]
    dtype = DTYPES.get(memory.dtype)
    if dtype is None:
        return Block(memory.data_ptr(), memory.nbytes, DType.UINT8, memory)
    return Block(memory.data_ptr(), memory.numel(), dtype, memory)


def numbers(memory: Any) -> Any:
    """The same to be added up; complex numbers are pairs of real ones."""
    if isinstance(memory, list):
        return [numbers(one) for one in memory]
    return block(torch.view_as_real(memory) if memory.is_complex() else memory)


def check_numbers(tensor: torch.Tensor) -> None:
    """Raises where there is nothing that could be added up."""
    dtype = tensor.dtype.to_real() if tensor.dtype.is_complex else tensor.dtype
    if dtype not in DTYPES:
        known = ", ".join(str(one).removeprefix("torch.") for one in DTYPES)
        raise RuntimeError(f"backend mrc cannot reduce {dtype}; it can reduce {known} and complex")
