"""The process group that torch gets for the name "mrc".

A class in Python that stands for the whole group: torch calls its methods, from Python and from C++, and hands out the
very Work that they return. From 2.14 on Python may also be one of several backends inside torch's own group, but a Work
then comes back from C++ as another object, which never says that it is completed and knows no source of a message.
"""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from softmrc import leaving
from softmrc.torch import hybrid, limits
from softmrc.torch.crew import Crew
from softmrc.torch.memory import order
from softmrc.torch.ops import Ops
from softmrc.torch.rendezvous import Membership
from softmrc.torch.work import renewed

_open: weakref.WeakSet[Member] = weakref.WeakSet()


class Left:
    """What is there of a group after it was left."""

    def __init__(self, group: Any) -> None:
        self.rank, self.size, self._error = group.rank, group.size, group.error

    @property
    def error(self) -> Exception | None:
        return self._error and renewed(self._error)

    def abort(self, reason: str) -> None:
        """There is nothing left to end."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("this process has left the group")


class Member(Ops, dist.ProcessGroup):  # type: ignore[misc]
    """A process group in Python: joining, leaving, and being asked about."""

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = _supports_time_estimate = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False

    def __init__(self, options: Any) -> None:
        # With a store besides, torch would make its own kind of group, and not ask ours.
        dist.ProcessGroup.__init__(self, options.group_rank, options.group_size)  # type: ignore[call-arg]
        self._name, self._desc = "", ""
        self._store = options.store
        self._membership: Membership | None = Membership(
            options.store, options.group_rank, options.group_size, limits.of_group(options.timeout)
        )
        self._group = self._membership.group
        self._crew = Crew("mrc-done")
        self._starter = Crew("mrc-start", most=1)
        self._courier = Crew("mrc-send", most=1)
        self._streams = {}
        _open.add(self)

    def shutdown(self) -> None:
        """Leave the group; what was sent has arrived when this returns."""
        membership, self._membership = self._membership, None
        if membership is None:
            return
        membership.leave()
        self._starter.close()
        self._courier.close()
        self._crew.close()
        self._streams = {}
        with order:
            order.sweep()
        self._group = Left(self._group)  # torch may keep us until the process ends; the device need not wait for that

    def abort(self) -> None:
        """End everything under way, on every rank."""
        self._group.abort(f"rank {self._group.rank} aborted the group")

    def set_timeout(self, timeout: timedelta) -> None:
        self._group.timeout_s = limits.of_group(timeout)

    _set_default_timeout = set_timeout

    def errored(self) -> Exception | None:
        """What ended the group, if something did."""
        return self._group.error

    def name(self) -> str:
        return "mrc"

    getBackendName = _get_backend_name = name

    # There is no native backend underneath that would keep names.

    def _get_backend(self, device: torch.device) -> Any:
        return self

    get_backend = _get_backend

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices we serve, once torch knows the group. While it makes one, torch 2.15 would take an answer for a
        sign of native backends, and record them."""
        config = dist.distributed_c10d._world.pg_backend_config.get(self, "")
        return [torch.device(pair.split(":")[0]) for pair in config.split(",") if pair]

    def get_group_store(self) -> Any:
        return self._store

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    _set_group_name = setGroupName

    def getGroupDesc(self) -> str:
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc

    _set_group_desc = setGroupDesc

    @property
    def group_name(self) -> Any:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._desc


class MixedGroup(Member):
    """The same with other backends in it, each for its devices."""

    def __init__(self, options: Any, others: hybrid.Others) -> None:
        super().__init__(options)
        self._others = others
        for device, (kind, backend) in others.items():
            self._register_backend(torch.device(device), kind, backend)

    def _get_backend(self, device: torch.device) -> Any:
        return self._others[device.type][1] if device.type in self._others else self

    get_backend = _get_backend

    def shutdown(self) -> None:
        super().shutdown()
        for _, backend in self._others.values():
            backend.shutdown()

    def abort(self) -> None:
        super().abort()
        for _, backend in self._others.values():
            backend.abort()


hybrid.choose_by_device(MixedGroup, Member)


def create(options: Any) -> Member:
    """A new group for torch."""
    others = hybrid.others(options)
    return MixedGroup(options, others) if others else Member(options)


def find(group: Any) -> Member:
    """Our part of a process group."""
    group = group or dist.group.WORLD
    for member in (group, *(_backend_of(group, device) for device in ("cpu", "cuda"))):
        if isinstance(member, Member):
            return member
    raise ValueError(f"{group} has no backend mrc")


def _backend_of(group: Any, device: str) -> Any:
    try:
        return group._get_backend(torch.device(device))
    except RuntimeError:
        return None


def _leave_all() -> None:
    """Users forget `destroy_process_group`; threads inside torch at the interpreter's end would abort the process."""
    for member in list(_open):
        member.shutdown()


leaving.at_exit(_leave_all)
