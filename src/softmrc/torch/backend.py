"""The process group that torch gets for the name "mrc".

A class in Python that stands for the whole group: torch calls its methods, from Python and from C++, and hands out the
very Work that they return. From 2.14 on Python may also be one of several backends inside torch's own group, but a Work
then comes back from C++ as another object, which never says that it is completed and knows no source of a message.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from softmrc.device import shutdown as leaving
from softmrc.torch import hybrid, timeouts
from softmrc.torch.collective_ops import CollectiveOps
from softmrc.torch.errors import runtime_errors
from softmrc.torch.flight_recorder import GroupInfo, recorder
from softmrc.torch.rendezvous import Membership
from softmrc.torch.store_barrier import store_barrier
from softmrc.torch.thread_pool import ThreadPool
from softmrc.torch.work import renewed

_open: weakref.WeakSet[MrcProcessGroup] = weakref.WeakSet()


class LeftGroup:
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


@dataclass
class Options:
    """What torch's tools ask of a backend's options."""

    timeout_s: float
    global_ranks_in_group: Sequence[int]
    group_name: str
    backend: str = "mrc"

    @property
    def _timeout(self) -> timedelta:
        return timedelta(seconds=min(self.timeout_s, timeouts.LONGEST_S))


class MrcProcessGroup(CollectiveOps, dist.ProcessGroup):  # type: ignore[misc]
    """A process group in Python: joining, leaving, and queries."""

    supports_splitting = True
    supports_coalescing = False
    supports_time_estimate = _supports_time_estimate = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False

    def __init__(self, options: Any) -> None:
        # With a store besides, torch would make its own kind of group, and not ask ours.
        dist.ProcessGroup.__init__(self, options.group_rank, options.group_size)  # type: ignore[call-arg]
        CollectiveOps.__init__(self)
        self._name, self._desc = "", ""
        self._store = options.store
        self._ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
        self._is_detailed = dist.get_debug_level() == dist.DebugLevel.DETAIL
        self._from: GroupInfo | None = None
        self._watches = self._splits = 0
        # Torch's name for the group, which is also what its keys in the store begin with: alike on all its ranks.
        self._scope = f"{getattr(options, 'group_id', '')} {','.join(map(str, self._ranks))}"
        with runtime_errors():
            self._membership: Membership | None = Membership(
                options.store, options.group_rank, options.group_size, timeouts.of_group(options.timeout), self._scope
            )
        self._group = self._membership.group
        self._pool = ThreadPool("mrc-done")
        self._collective_queue = ThreadPool("mrc-start", most=1)
        self._send_queue = ThreadPool("mrc-send", most=1)
        self._streams = {}
        _open.add(self)

    def shutdown(self) -> None:
        """Leave the group; what was sent has arrived when this returns."""
        membership, self._membership = self._membership, None
        if membership is None:
            return
        membership.leave()
        recorder.forget_operations(self._origin())
        self._collective_queue.close()
        self._send_queue.close()
        self._pool.close()
        self._streams = {}
        self._group = LeftGroup(
            self._group
        )  # torch may keep us until the process ends; the device need not wait for that

    def abort(self) -> None:
        """End everything under way, on every rank."""
        self._group.abort(f"rank {self._group.rank} aborted the group")

    def set_timeout(self, timeout: timedelta) -> None:
        self._group.timeout_s = timeouts.of_group(timeout)

    _set_default_timeout = set_timeout

    @property
    def options(self) -> Options:
        return Options(self._group.timeout_s, self._ranks, self._name)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Rank 0 waits for all others, and names who did not come: the first, or all. It goes by way of the store, so
        that it works where the group does not, and a failure does the group no harm."""
        self._watches += 1
        store_barrier(
            self._store, f"mrc-watch/{self._watches}", self.rank(), self.size(), self._patience(timeout), wait_all_ranks
        )

    def _patience(self, timeout: Any) -> float:
        return 0.0 if timeout == timedelta(0) else timeouts.of_operation(timeout) or self._group.timeout_s

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> MrcProcessGroup | None:
        """A group of some of these ranks, as `dist.split_group` wants it; None for the others."""
        self._splits += 1
        if self.rank() not in ranks:
            return None
        # Ranks may have been given different names by torch, where some are in groups that others are not in.
        place = f"mrc-split/{self._splits}/{','.join(map(str, ranks))}"
        part = MrcProcessGroup(
            SimpleNamespace(
                store=dist.PrefixStore(place, self._store),
                group_rank=list(ranks).index(self.rank()),
                group_size=len(ranks),
                group_id=f"{self._scope}/{place}",
                timeout=timeout or timedelta(seconds=self._group.timeout_s),
                global_ranks_in_group=[self._ranks[rank] for rank in ranks],
            )
        )
        part.setGroupName(group_name or f"{self._name}/{place}")
        part.setGroupDesc(group_desc or f"{self._desc}:split")
        return part

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Ranks outside of a new group have nothing to do."""

    eager_connect_single_device = perform_nocolor_split

    @property
    def transport(self) -> Any:
        """The `softmrc.collectives.Group`, or what is there of it after it was left."""
        return self._group

    # Sequence numbers, errors and names.

    def _origin(self) -> GroupInfo:
        if self._from is None:
            self._from = GroupInfo(self._name, self._desc or "undefined", self._ranks)
        return self._from

    def _get_sequence_number_for_group(self) -> int:
        """How many collectives were issued."""
        return self._issued[True]

    def _set_sequence_number_for_group(self) -> None:
        """It begins at 0."""

    def _enable_collectives_timing(self) -> None:
        """Every Work knows how long it took."""

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


class HybridProcessGroup(MrcProcessGroup):
    """The same with other backends in it, each for its devices."""

    def __init__(self, options: Any, others: hybrid.Others) -> None:
        super().__init__(options)
        self._others, self._beside = others, hybrid.group_of_others(others, options)
        hybrid.register(others, self)

    def _get_backend(self, device: torch.device) -> Any:
        return self._others[device.type][1] if device.type in self._others else self

    get_backend = _get_backend

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        for _, backend in self._others.values():
            backend._set_default_timeout(timeout)

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        super().shutdown()
        for _, backend in self._others.values():
            backend.shutdown()

    def abort(self) -> None:
        super().abort()
        for _, backend in self._others.values():
            backend.abort()


hybrid.choose_by_device(HybridProcessGroup, MrcProcessGroup)


def create(options: Any) -> MrcProcessGroup:
    """A new group for torch."""
    others = hybrid.others(options)
    return HybridProcessGroup(options, others) if others else MrcProcessGroup(options)


def find(group: Any) -> MrcProcessGroup:
    """Our part of a process group."""
    group = group or dist.group.WORLD
    for member in (group, *(_backend_of(group, device) for device in ("cpu", "cuda"))):
        if isinstance(member, MrcProcessGroup):
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
