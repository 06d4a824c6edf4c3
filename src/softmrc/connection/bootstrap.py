"""What either end arranges before it speaks: whom it means, what it proves itself by, its device."""

from __future__ import annotations

import functools
import ipaddress
import logging
import os
from collections.abc import Sequence
from typing import Any

from softmrc import _core
from softmrc.config import environment
from softmrc.config.environment import IDENTITY, SECRET
from softmrc.config.planes import LocalPlane, resolve
from softmrc.connection.identity import GET_LIBCRYPTO, NO_LIBCRYPTO, Identity
from softmrc.device import Device
from softmrc.device.checks import instance
from softmrc.errors import MISSING, ConfigError
from softmrc.fabric.host import FabricHost

log = logging.getLogger(__name__)
SHORT = 8  # characters of a secret, below which it is as good as none against who records a handshake
TO_AUTHENTICATE = f"a shared secret ({SECRET}) or a key ({IDENTITY})"
Folder = str | os.PathLike[str]
Knowledge = bytes | Identity | None  # a secret, or this end's key; None: nothing


def named(host: str) -> str:
    """A name of a host of the fabric that this process runs on, or what was given."""
    try:
        if not isinstance(host, str) or not host or "\0" in host:
            raise UnicodeError
        host.encode("idna")
    except UnicodeError:
        raise ConfigError("host", host, "must be an address or a name") from None
    here = FabricHost.from_environment()
    return here.resolve(host) if here else host


def all_named(hosts: str) -> tuple[str, ...]:
    """The addresses or names of one host, with commas between them."""
    several = hosts.split(",") if isinstance(hosts, str) else [hosts]
    return tuple(named(host.strip() if isinstance(host, str) else host) for host in several)


def tcp_port(port: int, least: int) -> int:
    if type(port) is not int or not least <= port <= 0xFFFF:
        raise ConfigError("port", port, f"must be a TCP port, {least} to 65535")
    return port


@functools.lru_cache(1)
def _say_short() -> None:
    """Once. It stays allowed: on loopback it may be no more than a name."""
    log.warning(
        "the shared secret has less than %d characters: one recorded handshake is enough to find it by trying; "
        "`openssl rand -hex 16` makes one", SHORT,
    )  # fmt: skip


def secret_of(given: str | bytes | None) -> bytes | None:
    """The secret that both sides share: as given, or from the environment, where others do not see it."""
    secret = given if given is not None else os.environ.get(SECRET) or None
    if secret is not None and (not isinstance(secret, str | bytes) or not secret):
        raise ConfigError(
            "secret",
            secret,
            "must have at least one character",
            f"Leave it out to use {SECRET}, or no secret on loopback.",
        )
    if secret is not None and len(secret) < SHORT:
        _say_short()
    try:
        return secret.encode() if isinstance(secret, str) else secret
    except UnicodeError:
        raise ConfigError("secret", MISSING, "must be text in UTF-8, or bytes") from None


def credentials_of(secret: str | bytes | None, identity: Folder | None) -> Knowledge:
    """What this end proves itself by: as given, or from the environment, where an identity goes before a secret."""
    if secret is not None and identity is not None:
        raise ConfigError("identity", str(identity), "cannot be combined with a secret")
    folder = identity if identity is not None else (None if secret is not None else os.environ.get(IDENTITY) or None)
    if folder is None:
        return secret_of(secret)
    if not isinstance(folder, str | os.PathLike) or not str(folder):
        raise ConfigError("identity", folder, "must be a folder with a key, as `softmrc key new` makes it")
    return Identity(folder)


def native_credentials(knowledge: Knowledge) -> _core.Credentials:
    """As the core's handshake takes them."""
    if isinstance(knowledge, Identity):
        return knowledge.credentials
    if knowledge is None:
        return _core.Credentials.none()
    if not _core.can_seal():
        raise ConfigError("secret", MISSING, NO_LIBCRYPTO, GET_LIBCRYPTO)
    return _core.Credentials.of_secret(knowledge)


def planes_before(host: str, device: Device | None, planes: Sequence[str] | None) -> list[LocalPlane]:
    """The planes of this side as far as they are known before anybody has answered."""
    if device is not None:
        return _checked(device).local_planes
    if isinstance(planes, Sequence) and not isinstance(planes, str):
        return [resolve(plane) for plane in planes]
    wanted = environment.read()
    return [resolve(plane, wanted.why) for plane in wanted.planes] if planes is None and fits(wanted, host) else []


def _checked(device: Device) -> Device:
    return instance("device", device, Device, "must be a Device, or None to make one")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def fits(wanted: environment.EnvSettings, host: str) -> bool:
    """Whether the planes that the environment names lead to where this address is."""
    return bool(wanted.planes) and resolve(wanted.planes[0], wanted.why).address.is_loopback == is_loopback(host)


def device_for(host: str, device: Device | None, planes: Sequence[str] | None, settings: dict[str, Any]) -> Device:
    """The caller's device, or one with the planes that were named, here or in the environment; on a host of a fabric,
    with all its planes; else with one plane, where `host` is. What `settings` leave out is as SOFTMRC_CONFIG says."""
    if device is not None:
        _checked(device)
        if planes is not None or settings:
            raise ConfigError("device", device, "cannot be combined with planes or settings")
        return device
    wanted = environment.read()
    settings = {**wanted.given, **settings}
    if planes is not None:
        return Device(planes, **settings)
    if not fits(wanted, host):
        return Device([host], **settings)
    here = FabricHost.from_environment()
    more = here.settings(**settings) if here is not None else settings
    return Device(wanted.planes, routes=wanted.routes, why=wanted.why, **more)
