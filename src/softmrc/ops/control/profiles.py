"""Profiles that a controller lays down in a device: formats of EVs, EV profiles, profiles of congestion control.

Each goes INIT → OFFLINE → ONLINE and back. In INIT it is written; to go OFFLINE it must be right as a whole; ONLINE it
can be given to queue pairs, and stays so while it is in use.
"""

from __future__ import annotations

from typing import Any

from softmrc.errors import RemoteError
from softmrc.ops.control.client import DeviceClient

KINDS = ("format", "ev", "cc")
STATES = ("init", "offline", "online")


class Profiles:
    """Those of one device. What a profile says is a dictionary, with the names of docs/reference/control.md."""

    def __init__(self, node: DeviceClient) -> None:
        self._node = node

    def all(self) -> list[dict[str, Any]]:
        return self._rows(self._node.ask("profiles"))

    def find(self, number: int) -> dict[str, Any]:
        return self._rows(self._node.ask("profiles", number=number))[0]

    def add(self, kind: str, /, **settings: Any) -> dict[str, Any]:
        """A new one, in INIT."""
        return self._one(self._node.ask("profile_add", kind=kind, set=settings))

    def set(self, number: int, /, **settings: Any) -> dict[str, Any]:
        """In INIT only, and all of it or none."""
        return self._one(self._node.ask("profile_set", number=number, set=settings))

    def move(self, number: int, to: str) -> dict[str, Any]:
        """One state on or back."""
        return self._one(self._node.ask("profile_state", number=number, to=to))

    def remove(self, number: int) -> None:
        self._node.ask("profile_remove", number=number)

    def give_to_all(self, number: int) -> dict[str, Any]:
        """Queue pairs that ask for no profile get this one, from now on."""
        return self._one(self._node.ask("profile_give", number=number))

    def give_own(self, kind: str) -> None:
        """They get what the device has by itself, again: of `ev` or `cc`."""
        self._node.ask("profile_give", own=kind)

    def _rows(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        rows = answer.get("profiles")
        if not isinstance(rows, list) or not all(isinstance(one, dict) for one in rows):
            raise RemoteError(f"device {self._node.name} answers without a list of profiles")
        return rows

    def _one(self, answer: dict[str, Any]) -> dict[str, Any]:
        return self._rows({"profiles": [answer.get("profile")]})[0]
