"""What queue pairs are given that ask for nothing else: their paths, and their congestion control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from softmrc.config import CcProfile, DeviceConfig, EvFormat, EvMode, EvProfile
from softmrc.config.planes import LocalPlane
from softmrc.device.peer import PeerPlane

MAX_EVS = 1024  # of one queue pair


class DefaultProfiles:
    """Of a device with these settings."""

    def __init__(self, config: DeviceConfig, planes: Sequence[LocalPlane], mtu: int, stays_here: bool) -> None:
        self._config = config
        self._planes = planes
        self._mtu = mtu
        self._stays_here = stays_here

    def cc_profile(self) -> CcProfile:
        speeds = [plane.speed_bps for plane in self._planes]
        return self._config.cc_profile(speeds, self._stays_here)

    def of_sockets(self, ports: Sequence[Sequence[int]]) -> EvProfile:
        """A path is a socket: its EV is the socket's source port."""
        return self._of(
            tuple((port, plane) for plane, of_plane in enumerate(ports) for port in of_plane), EvFormat.STEV
        )

    def of_paths(self, planes: Sequence[PeerPlane]) -> EvProfile | None:
        """The SRv6 paths to a peer; None where it has none. The first path of every plane, then the second."""
        rows = zip(*(plane.paths for plane in planes), strict=False)
        entries = tuple((path.packed, number) for row in rows for number, path in enumerate(row))
        return self._of(entries, EvFormat.SRV6) if entries else None

    def _of(self, entries: tuple[tuple[int | bytes, int], ...], format: Any) -> EvProfile:
        planes = len(self._planes)
        return EvProfile(
            mode=EvMode.EXPLICIT,
            format=format,
            count=min(len(entries), MAX_EVS) // planes * planes,
            spray_quantum=self._config.quantum_for(self._mtu),
            leaves_slow_ports=self._config.leave_slow_planes,
            entries=entries,
        )
