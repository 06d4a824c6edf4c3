"""The network says that a peer is gone. It may be lying: it makes us ask and wait for less, and decides nothing."""

from __future__ import annotations

import pytest

import packer
from packer import REQUEST
from rig import US, Rig, only
from softmrc.engine import CompletionStatus, QpState

EV_PROBE = 1
MS = 1000  # in µs
RETRIES = {"timeout": 16, "retry_linear": 7, "retry_exponential": 5}


# spec: unreachable
def test_every_plane_is_asked_at_once_and_again() -> None:
    rig = Rig(ports=4, rts=RETRIES)
    rig.post(100)
    rig.routes.clear()
    rig.endpoint.on_unreachable(rig.now, rig.peer)
    assert [p.op for p in rig.drain()] == [EV_PROBE] * 4
    assert {port for port, _ in rig.routes} == {0, 1, 2, 3}
    assert len(only(rig.advance(200 * MS), REQUEST)) >= 12


def test_who_stays_silent_is_given_up_long_before_the_timers_would() -> None:
    rigs = Rig(rts=RETRIES), Rig(rts=RETRIES)
    for rig in rigs:
        rig.post(100)
    rigs[0].endpoint.on_unreachable(rigs[0].now, rigs[0].peer)
    for rig in rigs:
        rig.advance(500 * MS)
    assert rigs[0].sends()["status"].tolist() == [CompletionStatus.RETRY_EXCEEDED.value]
    assert rigs[0].qp.state == QpState.ERROR
    assert not len(rigs[1].sends()) and rigs[1].qp.state == QpState.RTS, "patience alone, where nothing is said"


def test_a_report_is_no_verdict_while_anything_is_heard() -> None:
    """Reports without end, and one sign of life each 300 ms, of whatever kind."""
    rig = Rig(ports=2, rts={**RETRIES, "retry_exponential": 25})
    rig.post(100)
    signs = [
        lambda: packer.probe(0x40, 1),
        lambda: packer.request(EV_PROBE, 5),
        lambda: packer.sack(0x40, -1 & 0xFFFFFF),
    ]
    for turn in range(60):
        for _ in range(6):
            rig.endpoint.on_unreachable(rig.now, rig.peer)
            rig.advance(50 * MS)
        rig.receive(signs[turn % 3]())
    assert rig.qp.state == QpState.RTS and not len(rig.sends())


def test_an_idle_peer_is_not_asked() -> None:
    rig = Rig(ports=2)
    rig.endpoint.on_unreachable(rig.now, rig.peer)
    assert not rig.advance(1000 * MS)
    rig.endpoint.on_unreachable(rig.now, 12345)
    assert rig.endpoint.stats()["unreachable_reports"] == 1


def test_a_forger_cannot_make_us_flood() -> None:
    rig = Rig(ports=4, rts=RETRIES)
    rig.post(100)
    asked = 0
    for _ in range(1000):
        rig.endpoint.on_unreachable(rig.now, rig.peer)
        asked += len(only(rig.drain(), REQUEST))
        rig.receive(packer.request(EV_PROBE, 5))
        rig.now += US // 10
    assert asked <= 8, "one round in 50 ms, and this took 0.1 of one"


def test_only_those_who_wait_for_that_peer_fail() -> None:
    rig = Rig(rts=RETRIES)
    rig.post(100)
    other = rig.endpoint.add_peer()
    rig.endpoint.on_unreachable(rig.now, other)
    rig.advance(500 * MS)
    assert rig.qp.state == QpState.RTS


@pytest.mark.parametrize("mute", ["denied", "down"])
def test_whom_we_could_not_ask_is_not_given_up(mute: str) -> None:
    rig = Rig(ports=2, rts={**RETRIES, "retry_exponential": 25})
    rig.post(100)
    for ev in range(8 if mute == "denied" else 0):
        rig.qp.deny_ev(rig.now, ev)
    for port in range(2 if mute == "down" else 0):
        rig.endpoint.set_port(rig.now, port, False)
    rig.drain()
    rig.endpoint.on_unreachable(rig.now, rig.peer)
    assert not only(rig.advance(3000 * MS), REQUEST)
    assert rig.qp.state == QpState.RTS
