"""Settings are declared once, in the core: what Python has and what is refused follow from that."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from typing import Any

import pytest

from softmrc import _core, config
from softmrc.config import (
    CcProfile,
    DeviceConfig,
    EndpointConfig,
    EvFormat,
    EvMode,
    EvProfile,
    InitAttributes,
    RtrAttributes,
    RtsAttributes,
    to_native,
)
from softmrc.config.planes import resolve_all
from softmrc.engine import Endpoint
from softmrc.errors import ConfigError, DeviceError
from softmrc.wire import EvField

DECLARED = _core.settings()
BOUNDED = [
    (kind, name, bounds) for kind, (_, rows) in DECLARED.items() for name, _, bounds, _ in rows if bounds is not None
]
# What else has to be so for the ends of a range to be right.
NEEDS: dict[str, dict[str, Any]] = {
    "probe_interval_us": {"probe_interval_max_us": 3.6e9},
    "probe_interval_max_us": {"probe_interval_us": 1.0},
    "count": {"min_active": 0},
    "spares": {"count": 1},
    "min_active": {"count": 1024},
}
# These ends depend on another setting, so that the one that is declared is out of reach.
UNREACHED = {("spares", 1024)}


def made(cls: type, **given: Any) -> Any:
    """Such settings, which are good but for what is given."""
    return cls(**({"dest_qpn": 3} if cls is RtrAttributes else {}) | given)


def use(settings: Any, ports: int = 1) -> None:
    """Has the core judge them."""
    if isinstance(settings, DeviceConfig):
        settings.checked()
        return
    endpoint = Endpoint(settings if isinstance(settings, EndpointConfig) else EndpointConfig(ports=ports))
    if isinstance(settings, EvProfile):
        endpoint.add_ev_profile(settings)
        return
    if isinstance(settings, CcProfile):
        endpoint.add_cc_profile(settings)
        return
    endpoint.add_ev_profile()
    endpoint.add_cc_profile()
    endpoint.create_cq()
    endpoint.add_peer()
    qp = endpoint.create_qp(16)
    qp.init(settings if isinstance(settings, InitAttributes) else InitAttributes())
    qp.rtr(0, settings if isinstance(settings, RtrAttributes) else made(RtrAttributes))
    if isinstance(settings, RtsAttributes):
        qp.rts(0, settings)


@pytest.mark.parametrize("kind", DECLARED)
def test_python_begins_with_what_the_core_begins_with(kind: str) -> None:
    _, rows = DECLARED[kind]
    ours = getattr(config, kind)()
    native = getattr(_core, kind)()
    assert [(name, getattr(ours, name), getattr(native, name)) for name, *_ in rows] == [
        (name, default, default) for name, default, *_ in rows
    ]


@pytest.mark.parametrize("kind", DECLARED)
def test_every_value_arrives(kind: str) -> None:
    """Whatever is set in Python is what the core has then."""
    cls = getattr(config, kind)
    changed: dict[str, Any] = {}
    for name, default, bounds, meaning in DECLARED[kind][1]:
        assert meaning and meaning[-1] != ".", f"{kind}.{name} says what it means, in no more than a phrase"
        if isinstance(default, bool):
            changed[name] = not default
        elif isinstance(default, int | float):
            changed[name] = bounds[1] if bounds and bounds[1] != default else default + 1
        elif isinstance(default, str):
            changed[name] = _core.controllers()[-1]
        else:
            changed[name] = next(one for one in type(default) if one != default)
    native = to_native(cls(**changed))
    assert {name: getattr(native, name) for name in changed} == changed


@pytest.mark.parametrize(("kind", "name", "bounds"), BOUNDED, ids=[f"{kind}.{name}" for kind, name, _ in BOUNDED])
def test_bounds_are_where_they_are_said_to_be(kind: str, name: str, bounds: tuple[Any, Any]) -> None:
    cls = getattr(config, kind)
    needs = {other: value for other, value in NEEDS.get(name, {}).items() if hasattr(cls, other)}
    for end, beyond in zip(bounds, (-math.inf, math.inf), strict=True):
        if (name, end) not in UNREACHED:
            use(made(cls, **needs | {name: end}))
        outside = math.nextafter(end, beyond) if isinstance(end, float) else end + (1 if beyond > 0 else -1)
        if name.endswith("_us"):
            outside = end + math.copysign(max(1e-5, abs(end) * 1e-9), beyond)  # the core counts picoseconds
        with pytest.raises(ConfigError) as caught:
            use(made(cls, **needs | {name: outside}))
        assert caught.value.field == name
        assert caught.value.problem and str(caught.value).startswith(f"`{name}`: ")


NAN, INF, FLAG = float("nan"), float("inf"), ["yes", None, 2.5]
# What is wrong besides values out of bounds.
BAD: dict[type, dict[str, list[Any]]] = {
    EndpointConfig: {"ports": ["x"], "seed": [-1, 1 << 64], "secret": [-1, 1 << 64]} | dict.fromkeys(
        ("timestamps", "trim_nack", "peer_trim_nack", "sack_first_packet", "announces_ports", "proves_addresses"), FLAG
    ),
    EvProfile: {
        "count": [3], "spares": [1], "min_active": [129], "skips_congested": FLAG, "leaves_slow_ports": FLAG,
        "mode": ["auto"], "format": ["srv6", EvFormat.SRV6], "widths": [(0,), (33,), ("x",)],
        "fields": [(EvField(8),), ("x",)], "entries": [((1, 0),)],
    },
    CcProfile: {
        "algorithm": ["cubic", "", 1], "base_rtt_us": [NAN, INF], "max_window_bdp": [NAN], "gamma": [NAN],
        "learn_base_rtt": FLAG, "trimming": FLAG, "each_port": FLAG,
    },
    InitAttributes: {key: [1] for key in ("ev_profile", "cc_profile", "send_cq", "recv_cq", "domain")}
    | {key: [-1, 1 << 16] for key in ("hint_qps_per_peer", "hint_send_peers", "hint_receive_peers")},
    DeviceConfig: {"mtu": ["x", 1.5], "seal": ["maybe", 1], "congestion_control": ["cubic", 1]} | dict.fromkeys(
        ("icrc", "gso", "ecn", "srv6", "trimming", "prove_addresses", "watch_links", "leave_slow_planes"), FLAG
    ),
    RtrAttributes: {
        "peer": [1], "dest_qpn": [2], "mtu": [514], "dynamic_mpr": ["x"], "port_key": [-1, 1 << 64],
        "peer_port_key": [-1, 1 << 64],
    },
}  # fmt: skip
CASES = [(cls, name, value) for cls, table in BAD.items() for name, values in table.items() for value in values]


def test_every_field_has_bounds_or_a_bad_value() -> None:
    bounded = {(kind, name) for kind, name, _ in BOUNDED}
    for kind in DECLARED:
        cls = getattr(config, kind)
        left = {one.name for one in dataclasses.fields(cls) if (kind, one.name) not in bounded}
        assert left <= set(BAD.get(cls, ())), kind


@pytest.mark.parametrize(("cls", "name", "value"), CASES, ids=[f"{cls.__name__}.{name}" for cls, name, _ in CASES])
def test_a_value_that_will_not_do_is_named(cls: type, name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        use(made(cls, **{name: value}), ports=2)
    assert caught.value.field.startswith(name)
    assert caught.value.problem and str(caught.value).startswith(f"`{caught.value.field}`: ")


@pytest.mark.parametrize("entries", [(), ((1, 0), (2, 0)), ((1, 0), (2, 5)), ((1 << 40, 0),)])
def test_entries_that_will_not_do(entries: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ConfigError, match=r"^`entries"):
        use(EvProfile(mode=EvMode.EXPLICIT, count=2, entries=entries), ports=2)


def test_a_name_is_one_settings_alone() -> None:
    """The settings of controllers lie side by side in one profile."""
    for kind, (_, rows) in DECLARED.items():
        names = [name for name, *_ in rows]
        assert len(names) == len(set(names)), kind


@pytest.mark.parametrize(("name", "value"), [("seal", "-"), ("seal", "1e"), ("congestion_control", "1-2")])
def test_a_refused_text_stays_a_text(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DeviceConfig(**{name: value}).checked()
    assert (caught.value.field, caught.value.value) == (name, value)


def test_a_number_that_is_too_large_is_called_so() -> None:
    with pytest.raises(ConfigError, match=r"port`: .*smaller"):
        DeviceConfig(port=1 << 70).checked()


def test_a_profile_for_no_plane_has_a_window() -> None:
    assert DeviceConfig().cc_profile([]).max_window_bdp >= 0


def test_a_plane_can_be_copied_and_sent_to_another_process() -> None:
    plane = resolve_all(["127.0.0.1"])[0]
    for other in (copy.copy(plane), copy.deepcopy(plane), pickle.loads(pickle.dumps(plane))):
        assert other == plane and hash(other) == hash(plane)


def test_a_plane_has_no_zero_in_its_name() -> None:
    with pytest.raises(DeviceError):
        resolve_all(["127.0.0.1\0x"])
