"""A device of the core, made of settings and planes."""

from __future__ import annotations

import errno
import functools
import json
import logging
import resource
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from softmrc import _core
from softmrc.config import DeviceConfig, bounds, to_native
from softmrc.config.planes import LocalPlane
from softmrc.device.checks import instance
from softmrc.device.width import lanes_here
from softmrc.errors import ConfigError, DeviceError, did_you_mean

log = logging.getLogger(__name__)

_, MAX_SOCKETS = bounds(DeviceConfig, "sockets_per_plane")  # of one plane


class Opened(NamedTuple):
    """A device of the core."""

    native: Any
    faults: str  # that the environment asks for
    control: str  # the path of its control socket; empty: none


def checked_config(config: DeviceConfig | None, more: dict[str, Any]) -> DeviceConfig:
    if config is not None and more:
        raise ConfigError("more", sorted(more), "cannot be combined with a DeviceConfig")
    for name in sorted(set(more) - {one.name for one in fields(DeviceConfig)} if more else ()):
        known = [one.name for one in fields(DeviceConfig)]
        raise ConfigError(name, more[name], "no such field of DeviceConfig", did_you_mean(name, known))
    made = DeviceConfig(**more) if config is None else config
    return instance("config", made, DeviceConfig, "must be a DeviceConfig, or None").checked()


def _remedy(error: OSError, sockets: int, why: str) -> str:
    """The end of a sentence about a device that the system did not let open: what would help."""
    if error.errno == errno.EMFILE:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"; this device alone needs {sockets} sockets, and a process may have {most:,} files: raise `ulimit -n`"
    if error.errno == errno.EADDRINUSE:
        return "; leave `port` out and the system chooses one, so that several processes of a host each have their own"
    return f" ({why})" if why and error.errno == errno.EADDRNOTAVAIL else ""


@functools.lru_cache(8)
def warn_of_faults(faults: str) -> None:
    """One warning: faults of a forgotten variable must not look like a broken network."""
    log.warning("SOFTMRC_FAULTS breaks the planes of this process's devices, on purpose: %s", faults)


@functools.lru_cache(8)
def _in_json(config: DeviceConfig) -> str:
    return json.dumps(asdict(config))


def open_device(config: DeviceConfig, planes: Sequence[LocalPlane], mtu: int, why: str) -> Opened:
    """`why` says where planes come from that the caller did not choose."""
    lanes = config.lanes or lanes_here(config.port)
    try:
        native = _core.Device(to_native(config), planes, mtu, lanes)
    except DeviceError as error:
        sockets = lanes * len(planes) * config.sockets_per_plane
        raise DeviceError(error.errno, f"{error.strerror}{_remedy(error, sockets, why)}") from None
    faults = _core.inject_env_faults(native)
    if faults:
        warn_of_faults(faults)
    try:
        return Opened(native, faults, _open_control(native, config, planes, mtu))
    except DeviceError:  # a kept exception would keep the device open
        native.close()
        raise


def _open_control(native: Any, config: DeviceConfig, planes: Sequence[LocalPlane], mtu: int) -> str:
    """The path of its control socket (docs/reference/control.md); empty where it has none."""
    speeds = [plane.speed_bps for plane in planes]
    path, why = _core.open_control(native, "verbs", mtu, _in_json(config), speeds)
    if why:
        logging.getLogger("softmrc").info("no control socket: %s", why)
    return path
