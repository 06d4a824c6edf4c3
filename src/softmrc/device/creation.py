"""A device of the core, made of settings and planes."""

from __future__ import annotations

import errno
import functools
import json
import logging
import resource
import secrets
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from softmrc import _core
from softmrc.config import (
    DeviceConfig,
    EndpointConfig,
    EvProfile,
    RtrAttributes,
    RtsAttributes,
    to_native,
)
from softmrc.config.planes import LocalPlane
from softmrc.device.checks import instance, whole
from softmrc.device.width import lanes_here
from softmrc.engine import Endpoint
from softmrc.errors import ConfigError, DeviceError, did_you_mean

log = logging.getLogger(__name__)

MAX_SOCKETS = 256  # of one plane
ANY_QPN = 3


class Opened(NamedTuple):
    """A device of the core."""

    native: Any
    faults: str  # that the environment asks for
    control: str  # the path of its control socket; empty: none


def checked_config(config: DeviceConfig | None, more: dict[str, Any]) -> DeviceConfig:
    if config is not None and more:
        raise ConfigError("more", sorted(more), "either a DeviceConfig, or fields of one")
    for name in sorted(set(more) - {one.name for one in fields(DeviceConfig)} if more else ()):
        known = [one.name for one in fields(DeviceConfig)]
        raise ConfigError(name, more[name], f"a field of DeviceConfig{did_you_mean(name, known)}")
    made = DeviceConfig(**more) if config is None else config
    return instance("config", made, DeviceConfig, "a DeviceConfig, or None").checked()


@functools.lru_cache(8)
def check_queue_pairs(config: DeviceConfig) -> None:
    """Have the engine look at what queue pairs will be given, now and not when the first peer comes; once for each
    configuration."""
    endpoint = Endpoint()
    endpoint.add_ev_profile(EvProfile(count=1))
    endpoint.add_cc_profile(config.cc_profile())
    endpoint.create_cq()
    qp = endpoint.create_qp(ANY_QPN)
    qp.init()
    qp.rtr(0, RtrAttributes(peer=endpoint.add_peer(), dest_qpn=ANY_QPN))
    qp.rts(0, RtsAttributes(**config.sending()))


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
    """Once, and aloud: a variable that somebody forgot must not be taken for a broken network."""
    log.warning("SOFTMRC_FAULTS breaks the planes of this process's devices, on purpose: %s", faults)


@functools.lru_cache(8)
def _in_json(config: DeviceConfig) -> str:
    return json.dumps(asdict(config))


def open_device(config: DeviceConfig, planes: Sequence[LocalPlane], mtu: int, why: str) -> Opened:
    """`why` says where planes come from that the caller did not choose."""
    made = _native_config(config, planes, mtu)
    try:
        native = _core.Device(made)
    except DeviceError as error:
        sockets = made.lanes * len(planes) * config.sockets_per_plane
        raise DeviceError(error.errno, f"{error.strerror}{_remedy(error, sockets, why)}") from None
    faults = _core.set_weather(native)
    if faults:
        warn_of_faults(faults)
    try:
        return Opened(native, faults, _open_control(native, config, planes, mtu))
    except DeviceError:  # whoever keeps the exception would keep the device
        native.close()
        raise


def _native_config(config: DeviceConfig, planes: Sequence[LocalPlane], mtu: int) -> Any:
    plan = _core.DevicePlan()
    plan.engine = to_native(
        EndpointConfig(
            seed=secrets.randbits(63),
            secret=secrets.randbits(64),
            ports=len(planes),
            sack_threshold_bytes=config.sack_threshold_bytes,
            sack_gap_us=config.sack_gap_us,
            trim_nack=config.trimming,
            peer_trim_nack=config.trimming,
            announces_ports=True,
            proves_addresses=config.prove_addresses,
            probe_interval_us=config.probe_interval_us,
            answers_per_s=config.answers_per_s,
        )
    )
    plan.icrc, plan.gso, plan.ecn = config.icrc, config.gso, config.ecn
    plan.rekey_packets, plan.rekey_s = config.rekey_packets, config.rekey_s
    plan.watches_links = config.watch_links
    plan.spin_us = config.spin_us
    plan.lanes = whole("lanes", config.lanes, 32) or lanes_here(config.port)
    if config.send_buffer_bytes:
        plan.port_burst = max(1, config.send_buffer_bytes // mtu)
    for plane in planes:
        plan.add_plane(
            plane.address.packed,
            plane.scope_id,
            whole("port", config.port, 16),
            plane.interface,
            plane.link,
            config.sockets_per_plane,
            config.srv6,
            whole("buffer_bytes", config.buffer_bytes, 32),
            whole("send_buffer_bytes", config.send_buffer_bytes, 32),
        )
    return plan


def _open_control(native: Any, config: DeviceConfig, planes: Sequence[LocalPlane], mtu: int) -> str:
    """Where this device can be asked and told (docs/control.md); empty where it cannot."""
    speeds = [plane.speed_bps for plane in planes]
    path, why = _core.open_control(native, "verbs", mtu, _in_json(config), speeds)
    if why:
        logging.getLogger("softmrc").info("no control socket: %s", why)
    return path
