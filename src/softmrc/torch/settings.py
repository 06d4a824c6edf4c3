"""Which planes a process uses, and how its device is set: from the environment, from a file, or found.

    SOFTMRC_PLANES=eth0,eth1          planes as `softmrc.planes` describes them
    SOFTMRC_CONFIG=/etc/softmrc.toml  a file: `planes = ["eth0", "eth1"]`, and a table [device] with fields of
                                      `DeviceConfig`; SOFTMRC_PLANES goes before its planes.

A host of a fabric (`softmrc.fabric.host`) has that fabric's planes and SRv6 paths. Without any of these, ranks that
share a host use four planes on loopback; others every interface that is up.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from softmrc import _core
from softmrc.config import DeviceConfig
from softmrc.errors import ConfigError, DeviceError

LOOPBACK = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
MOST_PLANES = 16
_NET = Path("/sys/class/net")


@dataclass(frozen=True)
class Settings:
    """What was asked for; no planes means: find them."""

    planes: tuple[str, ...] = ()
    device: DeviceConfig = field(default_factory=DeviceConfig)
    routes: Any = None  # SRv6 paths to peers, as `Device` has them


def read(environment: Mapping[str, str] = os.environ) -> Settings:
    """Settings of this process."""
    path = environment.get("SOFTMRC_CONFIG", "")
    table = _table(Path(path)) if path else {}
    if unknown := sorted(set(table) - {"planes", "device"}):
        raise ConfigError(unknown[0], table[unknown[0]], f"planes or [device], in {path}")
    planes = table.get("planes", [])
    if not isinstance(planes, list) or not all(isinstance(one, str) for one in planes):
        raise ConfigError("planes", planes, f"a list of texts, in {path}")
    if text := environment.get("SOFTMRC_PLANES", ""):
        planes = [one.strip() for one in text.split(",") if one.strip()]
        if not planes:
            raise ConfigError("SOFTMRC_PLANES", text, "addresses or interfaces, with commas between them")
    device = _device(table.get("device", {}), path)
    if here := _fabric_host():
        return Settings(tuple(planes or here.planes), DeviceConfig(**here.settings(**device)), here.paths)
    return Settings(tuple(planes), DeviceConfig(**device))


# What few processes need is imported by those alone: it takes as long as joining does.


def _fabric_host() -> Any:
    if "SOFTMRC_FABRIC" not in os.environ:
        return None
    from softmrc.fabric.host import FabricHost

    return FabricHost.from_environment()


def _table(path: Path) -> dict[str, Any]:
    from softmrc.files import parse_toml, read_text

    return parse_toml(read_text(path, "SOFTMRC_CONFIG"), "SOFTMRC_CONFIG", str(path))


def _device(table: Any, path: str) -> dict[str, Any]:
    known = {one.name: str if isinstance(one.default, str) else int | float | bool for one in fields(DeviceConfig)}
    for name, value in table.items() if isinstance(table, dict) else [("device", table)]:
        if name not in known or not isinstance(value, known[name]):
            kind = "text" if known.get(name) is str else "number"
            raise ConfigError(f"device.{name}", value, f"a field of DeviceConfig and a {kind}, in {path}")
    return table


def host_identity() -> str:
    """The same for two processes exactly if loopback connects them: one boot, one network namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        network = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return socket.gethostname()
    return f"{boot}/{network}"


def chosen(settings: Settings, hosts: Sequence[str]) -> tuple[str, ...]:
    """The planes to use, by what was asked for and on which hosts the ranks are."""
    if settings.planes:
        return settings.planes
    return LOOPBACK if len(set(hosts)) == 1 else found()


def found() -> tuple[str, ...]:
    """Every interface that is up and has an address; those with hardware behind them, where there are any."""
    links = sorted({link for link, _, _ in _core.local_addresses()})
    up = [link for link in links if _is_usable(link)]
    if not up:
        raise DeviceError("no interface but loopback is up and has an address: set SOFTMRC_PLANES")
    with_hardware = [link for link in up if (_NET / link / "device").exists()]
    return tuple((with_hardware or up)[:MOST_PLANES])


def _is_usable(link: str) -> bool:
    try:
        is_loopback = int((_NET / link / "flags").read_text(), 16) & 0x8
        return not is_loopback and (_NET / link / "carrier").read_text().strip() == "1"
    except (OSError, ValueError):  # a link that is down has no carrier to read
        return False
