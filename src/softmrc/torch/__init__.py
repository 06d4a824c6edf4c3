"""The `torch.distributed` backend "mrc".

    dist.init_process_group("mrc")          # where softmrc is installed; nothing else to import

`register` is what torch calls when it is imported (entry point `torch.backends`): it tells torch the name and nothing
more, so that a program that does not use the backend pays nothing for it. `device_of` gives the `softmrc.device.Device`
under a group, with its counters, events and faults on demand.
"""

from __future__ import annotations

from typing import Any

__all__ = ["device_of", "dump_flight_recorder", "group_of", "monitored_barrier", "register"]

GPU_FILES = ("nvidiactl", "nvmap", "dxg", "kfd")  # of a driver that torch calls cuda: a card's, Tegra's, WSL's, ROCm's


def register() -> None:
    """Make "mrc" a name that `init_process_group` knows. Never raises: `import torch` calls it."""
    try:
        import torch.distributed as dist

        if dist.is_available() and "MRC" not in dist.Backend._plugins:
            dist.Backend.register_backend("mrc", _create, extended_api=True, devices=_devices())
    except Exception as error:
        import logging

        logging.getLogger(__name__).warning("backend mrc is not available: %s", error)


def _devices() -> list[str]:
    """Those that are here: torch makes tensors on a backend's devices. Asking the driver costs time in every
    `import torch`, so we look for its file. The tensors of a GPU that is not found so can be sent all the same."""
    from pathlib import Path

    import torch

    has_gpu = torch.backends.cuda.is_built() and any(Path("/dev", name).exists() for name in GPU_FILES)
    return ["cpu", "cuda"] if has_gpu else ["cpu"]


def _create(options: Any, backend_options: Any = None) -> Any:
    """What torch calls for each new group."""
    from softmrc.torch.backend import create

    return create(options)


def group_of(group: Any = None) -> Any:
    """The `softmrc.collectives.Group` under a process group (default: torch's default group)."""
    from softmrc.torch.backend import find

    return find(group).transport


def device_of(group: Any = None) -> Any:
    """The `softmrc.device.Device` under a process group (default: torch's default group)."""
    return group_of(group).device


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """`dist.monitored_barrier`, which torch up to 2.14 refuses every backend but Gloo, by its name."""
    import torch.distributed as dist

    from softmrc.torch.backend import find

    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        find(group).monitored_barrier(timeout, wait_all_ranks)


def dump_flight_recorder(path: Any = None) -> dict[str, Any]:
    """The last operations of this process and how far each came, as torch's tools read it; also into a file."""
    from softmrc.torch.flight_recorder import recorder

    if path is not None:
        recorder.write(path)
    return recorder.dump()
