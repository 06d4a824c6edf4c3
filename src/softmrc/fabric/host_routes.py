"""The paths of a planned fabric as one of its hosts sees them: what a device needs to spray over them."""

from __future__ import annotations

from ipaddress import IPv6Address

from softmrc.errors import ConfigError
from softmrc.fabric.address import AddressPlan


class HostRoutes:
    """For `Device(routes=…)`. Where a peer is closer and has fewer paths, they are repeated."""

    def __init__(self, plan: AddressPlan, host: int) -> None:
        if not 0 <= host < plan.shape.hosts:
            raise ConfigError("host", host, f"0 to {plan.shape.hosts - 1}")
        self._plan = plan
        self._host = host
        shape = plan.shape
        self.paths_per_plane = max(shape.paths(host, other) for other in range(shape.hosts) if other != host)

    def carriers(self, plane: int, address: IPv6Address) -> list[IPv6Address]:
        """A carrier for each path to the host with this address."""
        other = self._host_at(plane, address)
        paths = self._plan.shape.paths(self._host, other)
        return [self._plan.carrier(self._host, other, plane, i % paths) for i in range(self.paths_per_plane)]

    def _host_at(self, plane: int, address: IPv6Address) -> int:
        for host in range(self._plan.shape.hosts):
            if host != self._host and self._plan.nic_address(host, plane) == address:
                return host
        raise ConfigError("address", str(address), f"the address of another host of the fabric in plane {plane}")
