"""How long packet sizes are probed, in simulated time."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from softmrc.connection import path_check, path_mtu
from softmrc.connection.path_mtu import STEPS, MtuDiscovery, PlaneMtu
from softmrc.device.narrow_paths import FORGOTTEN_AFTER_S, NarrowPaths
from softmrc.device.peer import PeerPlane

FULL = 8832
RTT_S = 0.001
SILENT, WIDE = 0, 1 << 16


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Network:
    """Planes that answer questions up to a size after a round trip."""

    def __init__(self, clock: Clock, *carries: int, rtt_s: float = RTT_S) -> None:
        self.clock = clock
        self.asked: list[tuple[float, list[int]]] = []
        self.narrow_paths = NarrowPaths()
        self.config = SimpleNamespace(prove_addresses=True)
        self.has_routes, self.stays_here = False, False
        self.local_planes = [SimpleNamespace(link="eth0", link_mtu=9000) for _ in carries]
        self.path_mtus = [0] * len(carries)
        self.carries, self._rtt_s, self.native = list(carries), rtt_s, self
        self.room = slice(None)  # which of the questions of a round that get there are answered

    def planes(self) -> list[dict[str, bool]]:
        return [{"is_up": True}] * len(self.carries)

    def faults(self, plane: int) -> Any:
        return SimpleNamespace(mtu=0)

    def survey_sizes(self, lane: int, places: Any) -> int:
        return len(self.asked)

    def ask_sizes(self, lane: int, number: int, sizes: list[int]) -> None:
        assert number == len(self.asked)
        self.asked.append((self.clock.now, sizes))

    def sizes_answered(self, lane: int, number: int) -> list[int]:
        at, sizes = self.asked[number]
        is_late = self.clock.now < at + self._rtt_s
        answered = [[size for size in sizes if size <= most][self.room] for most in self.carries]
        return [0 if is_late else max(some, default=0) for some in answered]

    def end_survey(self, lane: int, number: int) -> None:
        pass

    def set_path_mtu(self, plane: int, size: int) -> None:
        self.path_mtus[plane] = size

    def survey(self, host: int = 1) -> MtuDiscovery:
        device: Any = self
        places = [PeerPlane(ipaddress.ip_address(f"10.0.{n}.{host}"), 9, (9,)) for n in range(len(self.carries))]
        return MtuDiscovery(device, 0, places, FULL, False)

    def spend(self, pauses: Iterator[float]) -> float:
        """How long they take in all."""
        began = self.clock.now
        for pause_s in pauses:
            self.clock.now += pause_s
        return self.clock.now - began


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (path_mtu, path_check):
        monkeypatch.setattr(module, "time", made)
    return made


def test_where_full_packets_get_through_two_questions_do(clock: Clock) -> None:
    network = Network(clock, WIDE, WIDE)
    survey = network.survey()
    assert network.spend(survey.pauses()) < 3 * RTT_S
    assert len(network.asked) == 1 and survey.payload == FULL and not survey.narrow


def test_the_smallest_is_asked_first_and_then_last(clock: Clock) -> None:
    network = Network(clock, 1500, 1500)
    network.spend(network.survey().pauses())
    for number, (_, sizes) in enumerate(network.asked):
        assert sizes == sorted(sizes, reverse=number % 2 == 1)
    assert len(network.asked) > 1


@pytest.mark.parametrize("room", [slice(1), slice(3), slice(-1, None), slice(-3, None)], ids=str)
@pytest.mark.parametrize("carries, payload", [(WIDE, FULL), (4200, 4096), (1500, 1408)])
def test_a_peer_with_room_for_few_answers_does_not_look_narrower(
    clock: Clock, room: slice, carries: int, payload: int
) -> None:
    """As where other traffic fills its sockets: room may end within every round, or begin."""
    network = Network(clock, carries, carries)
    network.room = room
    survey = network.survey()
    network.spend(survey.pauses())
    assert survey.payload == payload and bool(survey.narrow) == (payload < FULL)


@pytest.mark.parametrize("rtt_s", [RTT_S, 0.015])
@pytest.mark.parametrize("silent", [1, 3])
def test_silent_planes_are_not_waited_for(clock: Clock, silent: int, rtt_s: float) -> None:
    network = Network(clock, WIDE, *[SILENT] * silent, rtt_s=rtt_s)
    survey = network.survey()
    assert network.spend(survey.pauses()) < 8 * rtt_s + path_mtu.GRACE_S + path_mtu.LONGEST_PAUSE_S
    assert survey.payload == FULL and not survey.narrow


def test_a_narrow_plane_is_named_beside_a_silent_one(clock: Clock) -> None:
    network = Network(clock, 1500, SILENT, WIDE)
    survey = network.survey()
    network.spend(survey.pauses())
    assert survey.narrow == [PlaneMtu(0, 1408, True)] and survey.payload == FULL


def test_one_that_never_answers_is_not_asked_for_long(clock: Clock) -> None:
    network = Network(clock, SILENT, SILENT)
    assert network.spend(network.survey().pauses()) < 0.55
    assert len(network.asked) == path_mtu.SILENT_ROUNDS


@pytest.mark.parametrize("carries", [(1500, 1500), (SILENT, SILENT), (WIDE, SILENT)])
def test_all_ends_when_the_time_of_who_calls_is_up(clock: Clock, carries: tuple[int, ...]) -> None:
    network = Network(clock, *carries)
    spent_s = network.spend(network.survey().pauses(until=clock.now + 0.03))
    assert spent_s == pytest.approx(0.03)


def test_an_answer_of_a_plane_is_waited_for_no_longer_than_the_time_of_who_calls(clock: Clock) -> None:
    network = Network(clock, SILENT)
    pair: Any = SimpleNamespace(device=network, query=lambda: {"data_ports": 0})
    network.local_planes[:] = network.local_planes[:1]
    assert network.spend(path_check.pauses([pair], until=clock.now + 0.25)) == pytest.approx(0.25)
    assert network.spend(path_check.pauses([pair], until=clock.now - 1.0)) == 0.0


def test_sizes_below_the_full_one_are_those_of_known_links(clock: Clock) -> None:
    network = Network(clock, 4200)
    survey = network.survey()
    network.spend(survey.pauses())
    assert survey.payload == 4096 and 4096 in STEPS


def met(network: Network, host: int = 1) -> list[int]:
    """What is shown of the planes once this device has met a peer, which uses what gets through now."""
    survey = network.survey(host)
    network.spend(survey.pauses())
    survey.note("a peer")
    assert survey.payload == (FULL if max(network.carries) >= FULL else 1408)
    return network.path_mtus


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    found = len([one for one in caplog.records if "do not reach" in one.message])
    caplog.clear()
    return found


def test_a_path_that_carries_more_again_is_found_out_by_the_next_connection(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    network = Network(clock, 1500, WIDE)
    small = met(network)[0]
    assert 1400 < small <= 1500 and network.path_mtus[1] == 0 and warnings(caplog) == 1
    assert met(network)[0] == small and warnings(caplog) == 0
    network.carries[0] = WIDE
    assert met(network) == [0, 0] and warnings(caplog) == 0
    network.carries[0] = 1500
    assert met(network)[0] == small and warnings(caplog) == 1


def test_a_path_to_another_peer_says_nothing_about_this_one_for_a_while(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    network = Network(clock, 1500, WIDE)
    small = met(network, 1)[0]
    network.carries[0] = WIDE
    assert met(network, 2)[0] == small
    clock.now += FORGOTTEN_AFTER_S
    assert met(network, 2) == [0, 0] and warnings(caplog) == 1


def test_a_path_that_stays_narrow_is_warned_of_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    network = Network(clock, 1500)
    for _ in range(3):
        assert met(network)[0]
        clock.now += 2 * FORGOTTEN_AFTER_S
    assert warnings(caplog) == 1
