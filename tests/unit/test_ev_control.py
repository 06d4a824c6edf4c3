"""The controller's words about single EVs: what was taken away carries nothing, and a new path starts afresh."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import packer
from packer import REQUEST
from rig import PEER_QPN, QPN, RKEY, US, Rig, data, only
from softmrc.config import (
    CcProfile,
    EvFormat,
    EvMode,
    EvProfile,
    InitAttributes,
    RtrAttributes,
    RtsAttributes,
)
from softmrc.engine import EvState, Trim
from softmrc.engine.pair import Pair
from softmrc.errors import ConfigError, UsageError
from softmrc.wire import EvField

GOOD, BAD, DENIED = EvState.GOOD.value, EvState.ASSUMED_BAD.value, EvState.DENIED.value
ALWAYS_SKIP = 2
EV_PROBE = 1
PATIENT = {"window_bytes": 1 << 30}
NUMBERS = tuple((100 * port + i, port) for port in (0, 1) for i in range(4))
LISTED: dict[str, Any] = {"mode": EvMode.EXPLICIT, "count": 8, "entries": NUMBERS}
AS_BYTES = tuple((bytes([port, i]) * 8, port) for port in (0, 1) for i in range(4))
PROFILES: dict[str, dict[str, Any]] = {
    "automatic": {"count": 8},
    "listed": LISTED,
    "generated": {
        "mode": EvMode.GENERATED,
        "count": 8,
        "widths": (16, 16),
        "fields": (EvField(16, 0x100, 1, 15, 15), EvField(16, 0x200, 1, 15, 15)),
    },
    "srv6": LISTED | {"format": EvFormat.SRV6, "entries": AS_BYTES},
}


def permitted(rig: Rig) -> set[tuple[int, int]]:
    return {(int(ev["port"]), int(ev["value"])) for ev in rig.qp.evs() if ev["state"] != DENIED}


def write(psn: int, **more: Any) -> bytes:
    return packer.write(QPN, psn, b"data", va=0x1000, rkey=RKEY, msn=psn, ack_request=True, **more)


# A path that takes another's place.


def used_and_replaced() -> tuple[Rig, int, list[Any]]:
    """Two packets on each of two EVs, then the first packet's EV is replaced; (rig, its index, the packets)."""
    rig = Rig(evs={"count": 2}, cc=PATIENT)
    sent = data(rig.post(4 * 1024))
    index = [int(v) for v in rig.qp.evs()["value"]].index(rig.routes[0][1])
    rig.qp.replace_ev(rig.now, index, 0x1234)
    return rig, index, sent


# spec: ev-replace
def test_a_new_path_being_acknowledged_does_not_condemn_what_is_in_flight_on_the_old() -> None:
    rig, _, _ = used_and_replaced()
    sent = data(rig.post(2 * 1024))
    at = next(i for i, (_, entropy) in enumerate(rig.routes) if entropy == 0x1234)
    psn, ticks = sent[at - 4].psn, sent[at - 4].ticks or 0
    rig.now += 2 * US
    rig.receive(packer.sack(QPN, -1, ack_psn=psn, ticks=ticks, base=0, bitmap=1 << psn, ooo=1, rcvd_bytes=1024))
    assert rig.stats()["lost_same_ev"] == 0, "order on one path says nothing about two"


# spec: ev-replace
@pytest.mark.parametrize("seed", range(12))
def test_a_value_that_never_lost_a_packet_is_never_blamed(seed: int) -> None:
    """Half the paths drop everything and are replaced during it, at another moment with every seed."""
    cc = CcProfile(algorithm="fixed_window", window_bytes=64 * 1024)
    pair = Pair(2, seed=seed, ev_profile=EvProfile(count=8), cc_profile=cc)
    a, _ = pair.connect()
    remote = pair.b.register(length=1 << 26, rkey=1)
    dead = [0, 1, 4, 5]
    for i in dead:
        pair.set_ev_dead(0, int(a.evs()["port"][i]), int(a.evs()["value"][i]))
    a.post_write(pair.now_ps, 1 << 18, remote_va=0, rkey=1)
    pair.run_us(1.5 + 1.75 * seed)
    for i in dead:
        a.replace_ev(pair.now_ps, i, 0xC0DE0000 + i)
    fresh = a.evs()[dead]
    assert (fresh["state"] == GOOD).all() and (fresh["drops"] == 0).all() and (fresh["damping"] == 0).all()
    pair.a.poll_events()
    assert pair.pump(a, remote, count=20, length=1 << 16)[0] == 20
    assert (a.evs()[dead]["drops"] == 0).all(), "what the old paths lost was held against the new"
    blamed = {int(e["ev"]) for e in pair.a.poll_events() if e["code"] == BAD}
    assert not any(value >> 16 == 0xC0DE for value in blamed)


def fell(rig: Rig, entropy: int, psn: int, ticks: int) -> bytes:
    """The peer says never to use the path of this packet; the answer to the probe that follows at once."""
    mark = packer.sack(QPN, psn, ack_psn=psn, ticks=ticks, mark=ALWAYS_SKIP, rcvd_bytes=1024 * (psn + 1))
    (probe,) = only(rig.receive(mark), REQUEST)
    assert rig.routes[-1][1] == entropy
    return packer.response(EV_PROBE, probe.psn, probe.ticks)


# spec: ev-replace
def test_an_answer_to_a_probe_of_the_old_path_does_not_revive_the_new() -> None:
    rig = Rig(evs={"count": 4, "min_active": 1}, endpoint={"revival_answers": 1}, cc=PATIENT)
    (first,) = data(rig.post(1024))
    old = rig.routes[0][1]
    index = [int(v) for v in rig.qp.evs()["value"]].index(old)
    rig.now += 8 * US
    of_old = fell(rig, old, first.psn, first.ticks or 0)
    rig.qp.replace_ev(rig.now, index, 0x1234)
    assert rig.qp.evs()["state"][index] == GOOD
    psn, ticks = 0, 0
    while rig.routes[-1][1] != 0x1234:
        (packet,) = data(rig.post(1024))
        psn, ticks = packet.psn, packet.ticks or 0
    rig.now += 8 * US
    of_new = fell(rig, 0x1234, psn, ticks)
    rig.receive(of_old)
    assert rig.qp.evs()["state"][index] == BAD
    rig.receive(of_new)
    assert rig.qp.evs()["state"][index] == GOOD


def test_a_replaced_path_is_stepped_over_for_no_mark_of_the_old() -> None:
    rig, index, sent = used_and_replaced()
    rig.now += 8 * US
    first = sent[0]
    rig.receive(packer.sack(QPN, 0, ack_psn=0, ticks=first.ticks or 0, mark=1, rcvd_bytes=1024))
    assert rig.qp.evs()["state"][index] == GOOD
    other = next(p for p, route in zip(sent[1:], rig.routes[1:], strict=False) if route == rig.routes[0])
    rig.receive(packer.nack(QPN, other.psn, packer.TRIMMED, ticks=other.ticks or 0))
    assert rig.qp.evs()["state"][index] == GOOD and rig.stats()["lost_nacked"] == 1


def test_a_denied_path_stays_denied_when_it_is_replaced() -> None:
    rig = Rig(evs={"count": 2}, cc=PATIENT)
    rig.qp.deny_ev(0, 1)
    rig.qp.replace_ev(0, 1, 0x1234)
    rig.post(16 * 1024)
    assert rig.qp.evs()["state"][1] == DENIED and {entropy for _, entropy in rig.routes} == {rig.qp.evs()["value"][0]}
    rig.qp.allow_ev(rig.now, 1)
    rig.post(16 * 1024)
    assert (0, 0x1234) in rig.routes


# What may leave at all.

OPS = st.one_of(
    st.tuples(st.sampled_from(["deny", "allow", "replace"]), st.integers(0, 7)),
    st.tuples(st.sampled_from(["data", "again", "probe", "ev_probe", "port", "trimmed"]), st.integers(0, 1)),
    st.tuples(st.just("wait"), st.sampled_from([1, 50, 1_500])),
    st.tuples(st.just("post"), st.integers(1, 8)),
)


@pytest.mark.parametrize("profile", PROFILES)
@given(
    early=st.lists(st.tuples(st.sampled_from(["deny", "replace"]), st.integers(0, 7)), max_size=8),
    ops=st.lists(OPS, max_size=30),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# spec: ev-denied ev-replace reverse-paths
def test_nothing_ever_leaves_on_what_the_controller_took_away(profile: str, early: list[Any], ops: list[Any]) -> None:
    """Data, SACKs, ACKs, NACKs, probes, answers and port updates, of queue pairs that send and that only receive."""
    rig = Rig(ports=2, evs=PROFILES[profile], cc=PATIENT)
    rig.qp.destroy(rig.now)
    rig.qp = rig.endpoint.create_qp(QPN)
    rig.qp.init(InitAttributes(send_cq=rig.send_cq, recv_cq=rig.recv_cq))
    numbers = iter(range(1 << 16, 1 << 17))

    def control(what: str, index: int) -> None:
        if what == "deny":
            rig.qp.deny_ev(rig.now, index)
        elif what == "allow":
            rig.qp.allow_ev(rig.now, index)
        else:
            number = next(numbers)
            takes_bytes = profile in ("generated", "srv6")
            rig.qp.replace_ev(rig.now, index, number.to_bytes(4) if takes_bytes else number)

    for what, index in early:
        control(what, index)
    rig.qp.rtr(0, RtrAttributes(peer=rig.peer, dest_qpn=PEER_QPN, mtu=rig.mtu))
    rig.qp.rts(0, RtsAttributes())
    expected, up = 0, [True, True]
    for asked, (what, argument) in enumerate(ops):
        before = len(rig.routes)
        if what in ("deny", "allow", "replace"):
            control(what, argument)
            rig.drain()
        elif what in ("data", "again"):
            rig.receive(write(expected, rtx=what == "again"), port=argument, entropy=101)
            expected += what == "data"
        elif what == "trimmed":
            rig.receive(write(expected + 5, trimmed=True), port=argument, trim=Trim.TRIMMED)
        elif what == "probe":
            rig.receive(packer.probe(QPN, asked), port=argument)
        elif what == "ev_probe":
            rig.receive(packer.request(EV_PROBE, asked), port=argument)
        elif what == "port":
            up[argument] = not up[argument]
            rig.endpoint.set_port(rig.now, argument, up[argument])
            rig.drain()
        elif what == "wait":
            rig.advance(argument)
        else:
            rig.qp.post_write(rig.now, argument * 1024, remote_va=0, rkey=1, source=rig.source)
            rig.drain()
        assert set(rig.routes[before:]) <= permitted(rig), f"after {what}"


@pytest.mark.parametrize("profile", PROFILES)
def test_a_receivers_control_packets_spread_over_what_is_left(profile: str) -> None:
    """Three of four paths of each plane are denied: all acknowledgements take the fourth."""
    rig = Rig(ports=2, evs=PROFILES[profile])
    for index in (0, 1, 3, 4, 5, 6):
        rig.qp.deny_ev(0, index)
    for psn in range(40):
        rig.receive(write(psn), port=psn % 2)
        rig.advance(100.0)
    values = rig.qp.evs()["value"]
    assert len(rig.routes) > 80 and set(rig.routes) == {(0, int(values[2])), (1, int(values[7]))}


def test_with_every_path_denied_nothing_leaves_until_one_is_allowed() -> None:
    rig = Rig(ports=2, evs=LISTED)
    for index in range(8):
        rig.qp.deny_ev(0, index)
    assert rig.receive(write(0)) == [] and rig.receive(packer.request(EV_PROBE, 7)) == [] and rig.advance(5_000) == []
    rig.qp.allow_ev(rig.now, 6)
    kinds = {packet.opcode for packet in rig.drain()}
    assert kinds == {packer.SACK, packer.ACK} and {port for port, _ in rig.routes} == {1}


# Words that make no sense.


@pytest.mark.parametrize("operation", ["deny_ev", "allow_ev", "replace_ev"])
@pytest.mark.parametrize("index", [8, -1, 1 << 20, "first", None, 1.5])
def test_an_index_that_is_none(operation: str, index: Any) -> None:
    rig = Rig(ports=2, evs=LISTED)
    with pytest.raises(ConfigError) as caught:
        getattr(rig.qp, operation)(0, index, *([1] if operation == "replace_ev" else []))
    assert caught.value.field == "ev" and caught.value.problem


@pytest.mark.parametrize(
    ("profile", "value"),
    [
        ("listed", -1),
        ("listed", 1 << 32),
        ("listed", "path"),
        ("listed", b""),
        ("listed", bytes(33)),
        ("automatic", b"1234"),
        ("generated", 7),
        ("srv6", 7),
    ],
)
def test_a_value_that_the_profile_has_no_use_for(profile: str, value: Any) -> None:
    rig = Rig(ports=2, evs=PROFILES[profile])
    before = rig.qp.evs()
    with pytest.raises(ConfigError) as caught:
        rig.qp.replace_ev(0, 0, value)
    assert caught.value.field == "value" and caught.value.problem
    assert (rig.qp.evs() == before).all()


def test_a_queue_pair_in_reset_has_no_paths() -> None:
    qp = Rig().endpoint.create_qp(0x99)
    for operation in (qp.deny_ev, qp.allow_ev):
        with pytest.raises(UsageError, match="left RESET"):
            operation(0, 0)
    with pytest.raises(UsageError, match="left RESET"):
        qp.replace_ev(0, 0, 1)


# The floor.


# spec: ev-floor
def test_a_mark_that_says_never_does_not_starve_the_queue_pair() -> None:
    """At the floor it counts as a mark that says not now."""
    rig = Rig(evs={"count": 4, "min_active": 3}, cc=PATIENT)
    sent = data(rig.post(4 * 1024))
    rig.now += 8 * US
    for p in sent:
        told = {"ack_psn": p.psn, "ticks": p.ticks or 0, "mark": ALWAYS_SKIP, "rcvd_bytes": 1024 * (p.psn + 1)}
        rig.receive(packer.sack(QPN, p.psn, **told))
    assert list(rig.qp.evs()["state"]).count(BAD) == 1
