"""How a group comes to be: planes are agreed on through torch's store, and a device is shared by all groups on them."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

from softmrc.collectives import Group
from softmrc.collectives.group import made_for
from softmrc.collectives.offer import Greeting
from softmrc.collectives.rendezvous import cores_to_share
from softmrc.collectives.table import Table
from softmrc.collectives.work import quietly
from softmrc.torch import settings
from softmrc.verbs import Device

Key = tuple[int, tuple[str, ...], Any]  # process, planes and configuration; a forked child has its own devices


@dataclass
class _Shared:
    device: Device
    users: int = 0


_devices: dict[Key, _Shared] = {}
_lock = threading.Lock()


class Membership:
    """This process in one group, from joining to leaving."""

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float) -> None:
        wanted = settings.read()
        table = Table(store, "mrc", rank, size, timeout_s)
        try:
            hosts = [] if wanted.planes else _hosts(table, rank, size, wanted.device.lanes)
            planes, why = settings.chosen(wanted, hosts)
            self._key = (os.getpid(), planes, wanted.device)
            device = _take(self._key, wanted.routes, size, why)
            try:
                lanes = wanted.device.lanes or None
                self.group = Group.join(table, rank, size, device=device, lanes=lanes, timeout_s=timeout_s)
            except BaseException:
                _give_back(self._key)
                raise
        except BaseException as error:
            reason = str(error) or type(error).__name__
            quietly(lambda: table.give_up(reason))  # those who have greeted us wait for us
            raise
        self._has_left = False

    def leave(self) -> None:
        with _lock:
            if self._has_left:
                return
            self._has_left = True
        self.group.close()
        _give_back(self._key)


def _hosts(table: Table, rank: int, size: int, lanes: int) -> list[tuple[str, int]]:
    """Where each rank is: the same for two of them exactly if loopback connects them."""
    mine = Greeting.own(cores_to_share(bool(lanes)), lanes)
    said = table.agree(mine.told(rank, size))
    return [(one.host, one.network) for one in Greeting.heard(said, table)]


def _take(key: Key, routes: Any, size: int, why: str) -> Device:
    with _lock:
        if key not in _devices:
            _devices[key] = _Shared(made_for(key[1], key[2], size, routes=routes, why=why))
        _devices[key].users += 1
        return _devices[key].device


def _give_back(key: Key) -> None:
    with _lock:
        shared = _devices[key]
        shared.users -= 1
        if shared.users:
            return
        del _devices[key]
    shared.device.close()
