"""A scenario in the native simulator's terms: the one place that knows both."""

from __future__ import annotations

from typing import Any

from softmrc import _core
from softmrc.config import CcProfile, EndpointConfig, EvMode, EvProfile, to_native
from softmrc.errors import ConfigError
from softmrc.sim.scenario import Scenario

# What the core and a fabric call by the same names.
SHAPE = (
    "planes", "hosts", "hosts_per_leaf", "spines", "pods", "cores_per_spine", "cables_per_link", "cables_per_core_link",
)  # fmt: skip
# Where the core names a field otherwise than the file does.
_KEYS = {key: f"fabric.{key}" for key in SHAPE} | {
    "host_link_bps": "fabric.host_link_gbps", "fabric_link_bps": "fabric.fabric_link_gbps",
    "ports": "fabric.planes", "count": "transport.evs", "spares": "transport.spares", "mtu": "transport.mtu_bytes",
    "mpr_dest": "transport.mpr", "timeout": "transport.timeout", "base_rtt": "transport.base_rtt_us",
    "algorithm": "transport.congestion_control",
    "probe_interval": "transport.probe_interval_us", "qps_per_pair": "transport.qps_per_pair",
}  # fmt: skip


def in_file(scenario: Scenario, error: ConfigError) -> ConfigError:
    """A refusal of the core, with the key that the reader of a scenario knows."""
    return error.replaced(field=_KEYS.get(error.field, error.field), where=scenario.source)


def network_config(s: Scenario, seed: int) -> Any:
    """What `_core.Network` is made from."""
    try:
        return _network_config(s, seed)
    except ConfigError as error:
        raise error if error.where else in_file(s, error) from None


def _network_config(s: Scenario, seed: int) -> Any:
    f, t = s.fabric, s.transport
    config = _core.NetworkConfig()
    config.seed = seed
    config.fabric = _fabric(s)
    config.queue = _queues(s)
    config.forwarding = _forwarding(s)
    config.convergence_delay_us = f.convergence_delay_ms * 1000
    config.data_overhead_bytes = t.header_bytes
    config.control_packet_bytes = t.control_packet_bytes
    config.trimmed_packet_bytes = t.trimmed_packet_bytes
    config.mtu = t.mtu_bytes
    config.mpr = t.mpr
    config.timeout = s.timeout
    config.qps_per_pair = t.qps_per_pair
    config.hints = t.hints
    config.chain_on_acknowledgement = s.run.chain == "acknowledgement"
    config.endpoint = to_native(
        EndpointConfig(
            ports=f.planes,
            sack_first_packet=t.sack_first_packet,
            probe_interval_us=t.probe_interval_us,
            probe_interval_max_us=max(1_000_000.0, t.probe_interval_us),
        )
    )
    config.set_ev_profile(to_native(_ev_profile(s)))
    rate_bps = f.host_link_bps * f.planes
    config.set_cc_profile(
        to_native(
            CcProfile(
                algorithm=t.congestion_control,
                rate_bps=rate_bps,
                base_rtt_us=s.base_rtt_us,
                trimming=s.queues.trim,
                min_reorder_window_us=s.base_rtt_us / 4 if t.reorder_window_us < 0 else t.reorder_window_us,
                max_window_bdp=t.window_bdp,
                shared_window_bdp=t.shared_window_bdp,
                window_bytes=max(round(t.window_bdp * rate_bps * s.base_rtt_us / 8e6), t.mtu_bytes),
            )
        )
    )
    if t.kind == "roce":
        _use_roce(s, config)
    return config


def _ev_profile(s: Scenario) -> EvProfile:
    """A controller lists source routes, each once; a hash makes a path of whatever number is drawn."""
    t, f = s.transport, s.fabric
    if t.kind == "roce":  # which has no EVs; the profile it does not use must still fit the planes
        return EvProfile(count=f.planes)
    skips = t.spraying == "adaptive"
    if t.paths == "drawn" or _forwarding(s) == _core.Forwarding.ECMP:
        return EvProfile(count=t.evs, spares=t.spares, skips_congested=skips)
    count = min(t.evs, f.paths * f.planes)
    spares = min(t.spares, f.paths * f.planes - count)
    entries = tuple((path, plane) for plane in range(f.planes) for path in range(f.paths))
    return EvProfile(mode=EvMode.EXPLICIT, count=count, spares=spares, skips_congested=skips, entries=entries)


def _fabric(s: Scenario) -> Any:
    f = s.fabric
    fabric = _core.FabricConfig()
    for key in SHAPE:
        setattr(fabric, key, getattr(f, key))
    fabric.host_link_bps = f.host_link_bps
    fabric.fabric_link_bps = f.fabric_link_bps
    fabric.link_delay_us = f.link_delay_us
    return fabric


def _queues(s: Scenario) -> Any:
    q = s.queues
    is_roce = s.transport.kind == "roce"
    bdp_bytes = s.fabric.host_link_bps * s.base_rtt_us / 8e6
    queue = _core.QueueConfig()
    queue.data_bytes = round(q.data_bdp * bdp_bytes)
    queue.control_bytes = round(q.control_bdp * bdp_bytes)
    if q.ecn:
        queue.ecn_low_bytes = round(q.ecn_low_bdp * bdp_bytes)
        queue.ecn_high_bytes = max(round(q.ecn_high_bdp * bdp_bytes), 1)
    if q.trim and not is_roce:
        queue.trim_bytes = round(q.trim_bdp * bdp_bytes)
        queue.last_hop_trim_bytes = round(q.last_hop_trim_bdp * bdp_bytes)
    # DCQCN knows no other signal, so networks that run it mark on the last hop too.
    queue.ecn_on_last_hop = q.ecn_on_last_hop or is_roce
    return queue


def _forwarding(s: Scenario) -> Any:
    words = {"srv6": _core.Forwarding.SRV6, "ecmp": _core.Forwarding.ECMP, "structured": _core.Forwarding.STRUCTURED}
    chosen = s.fabric.forwarding
    if chosen == "auto":
        chosen = "ecmp" if s.transport.kind == "roce" else "srv6"
    return words[chosen]


def _use_roce(s: Scenario, config: Any) -> None:
    roce = _core.RoceConfig()
    roce.qps_per_pair = s.transport.qps_per_pair
    roce.dcqcn = s.transport.dcqcn
    roce.pfc = s.transport.pfc
    roce.line_rate_bps = s.fabric.host_link_bps
    config.transport = _core.Transport.ROCE
    config.roce = roce
