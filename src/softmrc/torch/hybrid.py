"""Other backends next to ours in one process group, where torch cannot keep them for us.

A group in Python replaces the group that torch was making, with every backend in it. So for `cpu:mrc,cuda:nccl` we make
the others ourselves, and send each operation to the backend of its tensors' device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from softmrc.torch.collective_ops import OPERATIONS

Others = dict[str, tuple[Any, Any]]  # by device: kind, and backend


def others(options: Any) -> Others:
    """The other backends of the group that torch is making, by device."""
    found: Others = {}
    for device, name in _wanted().items():
        if name != "mrc":
            store = dist.PrefixStore(f"mrc-beside/{device}", options.store)
            found[device] = _make(name, store, options)
    return found


def _wanted() -> dict[str, str]:
    """Torch tells the creator of a backend nothing about its neighbours; the frame that calls it knows."""
    frame = sys._getframe()
    while frame is not None and "backend_config" not in frame.f_locals:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return {}
    config = frame.f_locals["backend_config"]
    return {device: str(name) for device, name in config.get_device_backend_map().items()}


def _make(name: str, store: Any, options: Any) -> tuple[Any, Any]:
    kinds = dist.ProcessGroup.BackendType
    rank, size = options.group_rank, options.group_size
    if name == "gloo":
        return kinds.GLOO, dist.ProcessGroupGloo(store, rank, size, timeout=options.timeout)
    if name == "nccl" and dist.is_nccl_available():
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = options.timeout
        nccl.global_ranks_in_group = options.global_ranks_in_group
        nccl.group_name = options.group_id
        return kinds.NCCL, dist.ProcessGroupNCCL(store, rank, size, nccl)
    raise RuntimeError(f"backend mrc can be combined with gloo and, where torch has it, nccl; not with {name}")


def group_of_others(others: Others, options: Any) -> Any:
    """A group of torch's own, for their operations. A group in Python would call them with the interpreter locked:
    where a thread of Gloo's is letting go of a tensor, which takes that lock, each would wait for the other."""
    group = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
    register(others, group)
    return group


def register(others: Others, group: Any) -> None:
    for device, (kind, backend) in others.items():
        group._register_backend(torch.device(device), kind, backend)


def choose_by_device(mixed: type, ours: type) -> None:
    """Give a class operations that go where their tensors' device belongs: to `ours`, or to a backend in the group."""
    for name in OPERATIONS:
        if hasattr(dist.ProcessGroup, name):
            setattr(mixed, name, _chooser(name, getattr(ours, name)))


def _chooser(name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
    def operation(self: Any, *arguments: Any, **named: Any) -> Any:
        if _device_of((*arguments, *named.values())) in self._others:
            return getattr(self._beside, name)(*arguments, **named)
        return ours(self, *arguments, **named)

    return operation


def _device_of(arguments: Any) -> str | None:
    for one in arguments:
        if isinstance(one, torch.Tensor):
            return one.device.type
        if isinstance(one, list | tuple) and (device := _device_of(one)):
            return device
    return None
