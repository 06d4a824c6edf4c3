"""A host of a fabric as a sender sees it: its planes, and the SRv6 paths to any other host.

`SOFTMRC_FABRIC` (a fabric file) and `SOFTMRC_HOST` (a number) say which host a process runs on; `softmrc lab exec` sets
both. `connect`, `listen` and the commands then use every path without further settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

from softmrc._support.files import read_text
from softmrc.errors import ConfigError
from softmrc.fabric.address import AddressPlan
from softmrc.fabric.config.queues import LAB_RATE_BPS
from softmrc.fabric.description import Description, parse

FILE, NUMBER = "SOFTMRC_FABRIC", "SOFTMRC_HOST"

# Links so slow that a packet takes a millisecond, and hosts that share a machine's cores with every switch. Two packets
# a plane in the kernel: a path is then chosen when its port really has room, and acknowledgements hardly wait.
SLOW: dict[str, Any] = {
    "quantum": 1,
    "gso": False,
    "spin_us": 0.0,
    "base_rtt_us": 10_000.0,
    "reorder_us": 25_000.0,
    "send_buffer_bytes": 8 << 10,
    "sack_threshold_bytes": 4096,
}


@dataclass(frozen=True)
class FabricHost:
    """One host, by number."""

    description: Description
    host: int
    trims: bool = field(default=True)  # false where a lab runs without its switches' program

    def __post_init__(self) -> None:
        if not 0 <= self.host < self.description.fabric.hosts:
            raise ConfigError("host", self.host, f"must be 0 to {self.description.fabric.hosts - 1}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> FabricHost | None:
        """The host that the environment names, or None."""
        file, number = environment.get(FILE), environment.get(NUMBER)
        if not file or not number:
            return None
        if not number.isdigit():
            raise ConfigError(NUMBER, number, "must be the number of a host")
        return cls(parse(read_text(Path(file), FILE), Path(file).stem), int(number))

    @cached_property
    def plan(self) -> AddressPlan:
        return AddressPlan(self.description.fabric, self.description.addressing)

    @property
    def planes(self) -> list[str]:
        """The interfaces of its planes, by the names that the linux target gives them."""
        return [f"p{plane}" for plane in range(self.description.fabric.planes)]

    def settings(self, **more: Any) -> dict[str, Any]:
        """Fields of `DeviceConfig` for this host; what is given wins."""
        shape = self.description.fabric
        found: dict[str, Any] = {
            "srv6": True,
            "sockets_per_plane": 1,
            "trimming": self.trims and self.description.switch.trim,
            "rate_bps": shape.planes * shape.host_link_bps,
        }
        if shape.host_link_bps <= LAB_RATE_BPS:
            found |= SLOW
        return found | more

    def paths(self, plane: int, address: Any) -> tuple[IPv6Address, ...]:
        """A carrier for each path to the host with this address in a plane."""
        to = self.host_at(plane, address)
        if to is None:
            raise ConfigError(
                "address", str(address), f"must be the address of a host in plane {plane} of {self.description.name}"
            )
        count = self.description.fabric.paths(self.host, to)
        return tuple(self.plan.carrier(self.host, to, plane, path) for path in range(count))

    def host_at(self, plane: int, address: Any) -> int | None:
        """The other host with this address in a plane, if there is one."""
        return self._hosts_by_address.get((plane, address))

    @cached_property
    def _hosts_by_address(self) -> dict[tuple[int, Any], int]:
        shape = self.description.fabric
        return {
            (plane, self.plan.nic_address(host, plane)): host
            for host in range(shape.hosts)
            for plane in range(shape.planes)
            if host != self.host
        }

    def resolve(self, name: str) -> str:
        """host3 as an address that TCP reaches; anything else as it is."""
        number = self.number_of(name)
        return name if number is None else str(self.plan.host_address(number))

    def number_of(self, name: str) -> int | None:
        """Which host this names or is the address of; None: none of the fabric's."""
        found = re.fullmatch(r"host(\d+)", name)
        if found is None:
            return self._hosts_by_name.get(name)
        if int(found[1]) >= self.description.fabric.hosts:
            raise ConfigError("host", name, f"must be host0 to host{self.description.fabric.hosts - 1}")
        return int(found[1])

    @cached_property
    def _hosts_by_name(self) -> dict[str, int]:
        return {str(self.plan.host_address(host)): host for host in range(self.description.fabric.hosts)}
