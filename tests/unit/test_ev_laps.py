"""How ports share the rotation: rounds of busy ports, and what a port that has lost paths still carries."""

from __future__ import annotations

from collections import Counter

import parts
from softmrc import _core
from softmrc.config import EvProfile, to_native

RTT = 8_000_000
PORT_0, PORT_1, BOTH = 1, 2, 3


def make(per_port: int = 8, ports: int = 2) -> parts.EvSet:
    return parts.EvSet(to_native(EvProfile(count=per_port * ports)), ports, 7)


def evs_of(evs: parts.EvSet, port: int) -> list[int]:
    return [i for i, row in enumerate(evs.rows()) if row[1] == port]


def withdraw(evs: parts.EvSet, ev: int) -> None:
    evs.on_sent(ev, 0)
    evs.on_loss(ev, 0, 100 * RTT, 3 * RTT)
    assert evs.rows()[ev][2] == _core.EvState.ASSUMED_BAD


# spec: ev-rotation
def test_a_busy_port_misses_no_turn_of_its_lap() -> None:
    evs = make()
    picks = []
    for _ in range(3 * 8):
        picks.append(evs.pick(PORT_0, parts.NO_EV))
        evs.pick(PORT_1, parts.NO_EV)
        evs.pick(PORT_1, parts.NO_EV)  # the other port is twice as fast
    for lap in range(3):
        assert sorted(picks[8 * lap : 8 * lap + 8]) == evs_of(evs, 0)


# spec: ev-shares
def test_a_port_that_lost_paths_carries_as_much_less_while_the_others_are_congested() -> None:
    evs = make()
    for ev in evs_of(evs, 0)[:2]:
        withdraw(evs, ev)
    # Six turns a round of eight; a path that is stepped over once costs one more.
    for is_congested, least, most in ((False, 1, 1), (True, 5 / 8, 6 / 8)):
        sent: Counter[int] = Counter()
        for _ in range(8_000):  # both ports are always eager, one at a time
            for port in (PORT_0, PORT_1):
                ev = evs.pick(port, parts.NO_EV)
                sent[port] += ev != parts.NO_EV
                if is_congested and port == PORT_0 and ev != parts.NO_EV and sent[port] % 6 == 0:
                    evs.on_congestion(ev)
        assert sent[PORT_1] == 8_000
        assert least - 0.01 < sent[PORT_0] / sent[PORT_1] < most + 0.01


# spec: ev-shares
def test_with_both_ports_free_every_path_has_the_same_share() -> None:
    evs = make()
    withdraw(evs, evs_of(evs, 0)[0])
    picks = Counter(evs.pick(BOTH, parts.NO_EV) for _ in range(15 * 100))
    assert len(picks) == 15 and set(picks.values()) == {100}


# spec: ev-shares
def test_a_whole_port_that_stays_busy_does_not_stop_the_others() -> None:
    evs = make()
    withdraw(evs, evs_of(evs, 0)[0])
    picks = []
    for _ in range(1_000):
        evs.on_congestion(evs_of(evs, 0)[1])
        picks.append(evs.pick(PORT_0, parts.NO_EV))
    assert 100 < sum(ev != parts.NO_EV for ev in picks) < 500
    evs.set_live_ports(PORT_0)
    assert all(evs.pick(PORT_0, parts.NO_EV) != parts.NO_EV for _ in range(100))


# spec: ev-shares
def test_a_port_that_was_away_rejoins_the_lap() -> None:
    evs = make()
    withdraw(evs, evs_of(evs, 0)[0])
    evs.set_live_ports(PORT_0)
    for _ in range(7_000):
        evs.pick(PORT_0, parts.NO_EV)
    evs.set_live_ports(BOTH)
    sent: Counter[int] = Counter()
    for i in range(800):
        if i % 8 == 0:
            evs.on_congestion(evs_of(evs, 0)[1])
        for port in (PORT_0, PORT_1):
            sent[port] += evs.pick(port, parts.NO_EV) != parts.NO_EV
    assert sent[PORT_0] > 550
