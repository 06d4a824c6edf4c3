"""How a group comes to be: planes are agreed on through torch's store, and a device is shared by all groups on them."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any

from softmrc._support.threads import fork_safe_lock
from softmrc.collectives import Group
from softmrc.collectives.group import made_for
from softmrc.collectives.rank_info import MAX_CHANNELS, RankInfo
from softmrc.collectives.rendezvous import GroupJoin, NotLocal, cores_to_share
from softmrc.collectives.store_rendezvous import StoreRendezvous
from softmrc.collectives.work import CollectiveError, suppress_errors
from softmrc.config import interfaces
from softmrc.connection.bootstrap import secret_of
from softmrc.device import Device
from softmrc.torch import settings

Key = tuple[int, tuple[str, ...], Any]  # process, planes and configuration; a forked child has its own devices


@dataclass
class _Shared:
    device: Device
    users: int = 0


_devices: dict[Key, _Shared] = {}
_lock = fork_safe_lock()


class Membership:
    """This process in one group, from joining to leaving."""

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float, scope: str = "") -> None:
        """`scope` names the group among those whose stores have the same root: torch's groups differ by a prefix that
        we do not see."""
        self._timeout_s = timeout_s
        self._rank, self._size = rank, size
        rendezvous = StoreRendezvous(store, "mrc", rank, size, timeout_s, secret_of(None), scope)
        try:
            if size > 1:
                rendezvous.start()
            self._wanted = settings.of_process()
            self.group = self._joined(rendezvous)
        except BaseException as error:
            suppress_errors(functools.partial(rendezvous.excuse, error))
            raise
        self._has_left = False

    def _joined(self, rendezvous: StoreRendezvous) -> Group:
        """With the planes that were configured, or those for ranks of one host; if some are on others, with what
        connects those."""
        if found := settings.likely(self._wanted, self._size):
            try:
                return self._joined_with(rendezvous, found, is_guess=not self._wanted.planes)
            except NotLocal:
                pass
            except Exception as error:
                # A guess may be wrong, unless planes are configured or all ranks are on this host.
                is_no_guess = self._wanted.planes or rendezvous.records or isinstance(error, CollectiveError)
                if is_no_guess or len(set(self._hosts(rendezvous))) == 1:
                    raise
        return self._joined_with(rendezvous, settings.chosen(self._wanted, self._hosts(rendezvous)), is_guess=False)

    def _joined_with(self, rendezvous: StoreRendezvous, found: interfaces.DetectedPlanes, is_guess: bool) -> Group:
        planes, why = found
        lanes = self._wanted.device.lanes
        config = settings.device_here(self._wanted.device) if planes is settings.LOOPBACK else self._wanted.device
        self._key = (os.getpid(), planes, config)
        device = _take(self._key, self._wanted.routes, self._size, why)
        try:
            channels = min(lanes or MAX_CHANNELS, device.lanes)
            meeting = GroupJoin(
                rendezvous, self._rank, self._size, device, self._timeout_s, channels, bool(lanes), is_guess=is_guess
            )
            return Group(meeting, self._timeout_s, owns_device=False)
        except BaseException:
            _give_back(self._key)
            raise

    def _hosts(self, rendezvous: StoreRendezvous) -> list[tuple[str, int]]:
        """Where each rank is: the same for two of them exactly if loopback connects them."""
        lanes = self._wanted.device.lanes
        if not rendezvous.records:
            rendezvous.join(RankInfo.own(cores_to_share(bool(lanes)), lanes).to_wire(self._rank, self._size))
        infos = RankInfo.from_wire(rendezvous.records, lambda rank: rendezvous.key("record", rank))
        return [one.where for one in infos]

    def leave(self) -> None:
        with _lock:
            if self._has_left:
                return
            self._has_left = True
        self.group.close()
        _give_back(self._key)


def _take(key: Key, routes: Any, size: int, why: str) -> Device:
    with _lock:
        shared = _devices.get(key)
        if shared is None:
            made = _Shared(made_for(key[1], key[2], size, routes=routes, why=why))
            shared = _devices.setdefault(key, made)
            if shared is not made:  # a finalizer was faster
                made.device.close()
        shared.users += 1
        return shared.device


def _give_back(key: Key) -> None:
    with _lock:
        shared = _devices[key]
        shared.users -= 1
        if shared.users:
            return
        del _devices[key]
    shared.device.close()
