"""How a group comes to be: planes are agreed on through torch's store, and a device is shared by all groups on them."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

from softmrc.collectives import Group
from softmrc.collectives.group import widened
from softmrc.collectives.table import Table
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
        hosts: list[str] = []
        if not wanted.planes:
            hosts = Table(store, "mrc-hosts", rank, size, timeout_s).agree(settings.host_identity())
        planes, why = settings.chosen(wanted, hosts)
        self._key = (os.getpid(), planes, wanted.device)
        device = _take(self._key, wanted.routes, size, why)
        try:
            lanes = wanted.device.lanes or None
            self.group = Group.join(store, rank, size, device=device, lanes=lanes, timeout_s=timeout_s, name="mrc")
        except BaseException:
            _give_back(self._key)
            raise
        self._has_left = False

    def leave(self) -> None:
        with _lock:
            if self._has_left:
                return
            self._has_left = True
        self.group.close()
        _give_back(self._key)


def _take(key: Key, routes: Any, size: int, why: str) -> Device:
    with _lock:
        if key not in _devices:
            _devices[key] = _Shared(Device(key[1], widened(key[2], key[1], size, why=why), routes=routes, why=why))
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
