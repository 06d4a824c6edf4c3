"""A tensor as memory for the transport: where it lies, if it is contiguous CPU memory; otherwise by way of a buffer."""

from __future__ import annotations

import torch

from softmrc.collectives import Block, DType

DTYPES = {
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.int8: DType.INT8,
    torch.int16: DType.INT16,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.uint8: DType.UINT8,
    torch.uint16: DType.UINT16,
    torch.uint32: DType.UINT32,
    torch.uint64: DType.UINT64,
    torch.bool: DType.BOOL,
}


class Slot:
    """One tensor of an operation."""

    __slots__ = ("buffer", "is_staged", "on_device", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.layout != torch.strided:
            raise RuntimeError(f"backend mrc takes dense tensors, not {tensor.layout}")
        self.tensor = tensor.detach()
        self.on_device = tensor.device.type != "cpu"
        self.is_staged = False
        self.buffer = self.tensor
        if self.on_device or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            self.stage()

    def stage(self) -> None:
        """Go by way of a buffer. Before anybody has asked for the memory."""
        self.is_staged = True
        self.buffer = torch.empty(self.tensor.shape, dtype=self.tensor.dtype, pin_memory=self.on_device)

    def copy_in(self, non_blocking: bool = False) -> None:
        self.buffer.copy_(self.tensor, non_blocking=non_blocking)

    def copy_out(self, non_blocking: bool = False) -> None:
        self.tensor.copy_(self.buffer, non_blocking=non_blocking)

    def block(self) -> Block:
        """To be moved; what the transport has no name for travels as bytes."""
        buffer = self.buffer
        dtype = DTYPES.get(buffer.dtype)
        if dtype is None:
            return Block(buffer.data_ptr(), buffer.nbytes, DType.UINT8, buffer)
        return Block(buffer.data_ptr(), buffer.numel(), dtype, buffer)

    def numbers(self) -> Block:
        """To be added up; complex numbers are pairs of real ones."""
        buffer = torch.view_as_real(self.buffer) if self.buffer.is_complex() else self.buffer
        dtype = DTYPES.get(buffer.dtype)
        if dtype is None:
            known = ", ".join(str(one).removeprefix("torch.") for one in DTYPES)
            raise RuntimeError(f"backend mrc cannot reduce {buffer.dtype}; it can reduce {known} and complex")
        return Block(buffer.data_ptr(), buffer.numel(), dtype, buffer)


def blocks(slots: list[Slot]) -> list[Block]:
    return [slot.block() for slot in slots]
