"""How a group comes to be: planes are agreed on through torch's store, and a device is shared by all groups on them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from softmrc.collectives import CollectiveError, Group
from softmrc.torch import settings
from softmrc.verbs import Device

Key = tuple[tuple[str, ...], Any]  # planes and configuration


@dataclass
class _Shared:
    device: Device
    users: int = 0


_devices: dict[Key, _Shared] = {}
_lock = threading.Lock()


class Membership:
    """This process in one group, from joining to leaving."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        wanted = settings.read()
        planes = wanted.planes
        if not planes:
            planes = settings.chosen(wanted, exchange(store, rank, size, settings.host_identity(), timeout))
        self._key = (planes, wanted.device)
        device = _take(self._key, wanted.routes)
        try:
            self.group = Group.join(store, rank, size, device=device, timeout_s=timeout.total_seconds(), name="mrc")
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


def _take(key: Key, routes: Any) -> Device:
    with _lock:
        if key not in _devices:
            _devices[key] = _Shared(Device(key[0], key[1], routes=routes))
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


def exchange(store: Any, rank: int, size: int, text: str, timeout: timedelta) -> Sequence[str]:
    """Everybody's text, by rank. Names the ranks that do not come."""
    keys = [f"mrc/host/{i}" for i in range(size)]
    store.set(keys[rank], text)
    try:
        store.wait(keys, timeout)
    except RuntimeError as error:
        missing = [i for i in range(size) if not store.check([keys[i]])]
        if not missing:
            raise
        who = ", ".join(str(i) for i in missing)
        plural = "s" if len(missing) > 1 else ""
        raise CollectiveError(f"rank{plural} {who} of {size} did not join within {timeout}") from error
    return [store.get(key).decode() for key in keys]
