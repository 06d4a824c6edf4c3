"""What either end arranges before it speaks: whom it means, its secret, its device."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from typing import Any

from softmrc.errors import ConfigError
from softmrc.fabric.host import FabricHost
from softmrc.verbs import Device
from softmrc.verbs.bounds import instance

SECRET = "SOFTMRC_SECRET"


def named(host: str) -> str:
    """A name of a host of the fabric that this process runs on, or what was given."""
    try:
        if not isinstance(host, str) or not host or "\0" in host:
            raise UnicodeError
        host.encode("idna")
    except UnicodeError:
        raise ConfigError("host", host, "an address or a name") from None
    here = FabricHost.from_environment()
    return here.resolve(host) if here else host


def tcp_port(port: int, least: int) -> int:
    if type(port) is not int or not least <= port <= 0xFFFF:
        raise ConfigError("port", port, f"a TCP port, {least} to 65535")
    return port


def secret_of(given: str | bytes | None) -> bytes | None:
    """The secret that both sides share: as given, or from the environment, where others do not see it."""
    secret = given if given is not None else os.environ.get(SECRET) or None
    if secret is not None and (not isinstance(secret, str | bytes) or not secret):
        raise ConfigError("secret", secret, f"at least one character, or None: {SECRET}, or no secret on loopback")
    try:
        return secret.encode() if isinstance(secret, str) else secret
    except UnicodeError:
        raise ConfigError("secret", "not shown", "text that UTF-8 can express, or bytes") from None


def device_for(host: str, device: Device | None, planes: Sequence[str] | None, settings: dict[str, Any]) -> Device:
    """The caller's device, or one with a plane where `host` is; on a host of a fabric, with all its planes."""
    if device is not None:
        instance("device", device, Device, "a Device, or None for one of its own")
        if planes is not None or settings:
            raise ConfigError("device", device, "either a device, or planes and settings to make one")
        return device
    here = FabricHost.from_environment() if planes is None else None
    if here is not None and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        return Device(here.planes, routes=here.paths, **here.settings(**settings))
    return Device([host] if planes is None else planes, **settings)
