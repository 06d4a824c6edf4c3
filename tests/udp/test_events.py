"""Events in words."""

from __future__ import annotations

from softmrc.device import Device, Event
from softmrc.engine import EventType, EvState, QpState, RefusedPacket


def words(kind: EventType, **more: int) -> str:
    known = {"qpn": 0, "plane": 1, "ev": 7, "psn": 0, "code": 0, "value": 0, "at_ps": 2_500_000_000_000}
    return str(Event(type=kind, **known | more))


def test_no_code_is_left_to_be_looked_up() -> None:
    assert words(EventType.port_state) == "2.500000 s: plane 1 is down"
    assert "path 0x00000007 of plane 1 is ASSUMED_BAD" in words(EventType.ev_state, code=EvState.ASSUMED_BAD.value)
    assert "queue pair 0x10 is ERROR" in words(EventType.qp_state, qpn=16, code=QpState.ERROR.value)
    assert "planes 0, 2" in words(EventType.peer_ports, value=0b101)
    assert "in 250 µs" in words(EventType.probe_answer, value=250_000_000)
    for reason in RefusedPacket:
        assert reason.name.lower().replace("_", " ") in words(EventType.packet_refused, code=reason.value)
    for kind in EventType:
        assert words(kind)


def test_a_devices_events_have_words() -> None:
    with Device(["127.0.0.1", "127.0.0.2"]) as device:
        device.set_port(1, False)
        said = [str(event) for event in device.poll_events()]
    assert any("plane 1 is down" in one for one in said), said
