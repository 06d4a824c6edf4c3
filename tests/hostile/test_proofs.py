"""A peer that is really at one plane of those it named answers for another host's address with guesses.

It sees every question that goes to its own plane, may have seen thousands before, and may answer as fast as it likes.
"""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest

import packer
from packer import RESPONSE, Parsed
from rig import QPN, Rig, only
from softmrc.config import EndpointConfig, RtrAttributes
from softmrc.engine import CompletionStatus, QueuePair, RefusedPacket
from softmrc.engine.pair import Pair

EV_PROBE = 1
KEYS = {"port_key": 0x0123456789ABCDEF, "peer_port_key": 0xFEDCBA9876543210}
OWN, VICTIM = 0, 1
S = 1_000_000  # in microseconds
MAX_GUESSES = 64  # for a question, where only numbers of 16 bits are echoed


def rig_that_asks(keys: dict[str, int], seed: int = 1, ports: int = 2) -> Rig:
    endpoint = {"proves_addresses": True, "seed": seed, "secret": seed * 0x9E3779B97F4A7C15 % 2**64}
    return Rig(ports=ports, mtu=512, evs={"count": 8 * ports}, endpoint=endpoint, rtr=keys)


def asked(rig: Rig, sent: list[Parsed]) -> dict[int, Parsed]:
    """The questions among what was sent just now, by plane."""
    routes = rig.routes[len(rig.routes) - len(sent) :]
    both = zip(sent, routes, strict=True)
    return {port: p for p, (port, _) in both if p.opcode == packer.REQUEST and p.op == EV_PROBE}


def answer(rig: Rig, question: Parsed, port: int = OWN) -> list[Parsed]:
    return rig.receive(packer.response(EV_PROBE, question.psn, question.ticks, question.key), port=port)


def say(rig: Rig, raw: bytes) -> None:
    rig.endpoint.handle_datagram(rig.now, raw, peer=rig.peer, port=OWN)


def ports_used(rig: Rig) -> set[int]:
    rig.routes.clear()
    rig.post(512 * 60)
    return {port for port, _ in rig.routes}


def guesses(rng: Random, seen: Parsed, ticks: int) -> list[bytes]:
    """Every number at the moment that the malicious peer knows of, its own probe's token, and blind ones."""
    made = [packer.response(EV_PROBE, number, ticks) for number in range(65536)]
    near = [seen.key + step & 2**64 - 1 for step in (-2, -1, 0, 1, 2)] + [seen.key ^ 2**64 - 1]
    blind = [rng.getrandbits(64) for _ in range(4096)]
    made += [packer.response(EV_PROBE, rng.getrandbits(16), ticks, key or 1) for key in (*near, *blind)]
    rng.shuffle(made)
    return made


# spec: proof-of-address
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("keys", [KEYS, {}], ids=["ours", "foreign"])
def test_who_sees_one_plane_cannot_answer_for_another(keys: dict[str, int], seed: int) -> None:
    rig = rig_that_asks(keys, seed)
    questions = asked(rig, rig.drain())
    assert set(questions) == {OWN, VICTIM}
    answer(rig, questions[OWN])
    rig.post(512)
    rig.endpoint.poll_events()
    for raw in guesses(Random(seed), questions[OWN], rig.now // 128_000 & 0xFFFF):
        say(rig, raw)
    rig.drain()
    assert ports_used(rig) == {OWN}
    assert rig.stats()["refused_wrong_proof"] >= MAX_GUESSES, "the operator can see it"
    assert RefusedPacket.WRONG_PROOF in rig.refusals()


# spec: proof-of-address
@pytest.mark.parametrize("keys", [KEYS, {}], ids=["ours", "foreign"])
def test_guesses_do_not_keep_an_honest_peer_out(keys: dict[str, int]) -> None:
    """With a nonce they change nothing; without, a question that drew too many is void, and the next one is not."""
    rig = rig_that_asks(keys)
    questions = asked(rig, rig.drain())
    answer(rig, questions[OWN])
    for number in range(4 * MAX_GUESSES):
        say(rig, packer.response(EV_PROBE, number, questions[OWN].ticks ^ 0x8000, number + 1 if keys else 0))
    answer(rig, questions[VICTIM], VICTIM)
    assert ports_used(rig) == ({OWN, VICTIM} if keys else {OWN})
    if not keys:
        answer(rig, asked(rig, rig.advance(20_000))[VICTIM], VICTIM)
        assert ports_used(rig) == {OWN, VICTIM}


def test_a_few_answers_that_mean_nothing_do_no_harm() -> None:
    """Towards peers of other makes too: duplicates and late ones look like guesses."""
    rig = rig_that_asks({})
    questions = asked(rig, rig.drain())
    for number in range(MAX_GUESSES - 1):
        say(rig, packer.response(EV_PROBE, number, questions[VICTIM].ticks ^ 0x8000))
    answer(rig, questions[VICTIM], VICTIM)
    assert ports_used(rig) == {VICTIM}


@pytest.mark.parametrize("keys", [KEYS, {}], ids=["ours", "foreign"])
def test_no_two_questions_carry_the_same(keys: dict[str, int]) -> None:
    """On whatever plane, to whatever peer, whenever; nor do their differences repeat."""
    seen: list[tuple[int, int, int]] = []
    for seed in (1, 2):
        rig = rig_that_asks(keys, seed, ports=4)
        other = rig.endpoint.add_peer()
        sent = rig.drain()
        rig.peer = other
        rig.another_qp(QPN + 1)
        sent += rig.drain() + rig.advance(60 * S)
        seen += [(q.psn, q.ticks, q.key) for q in sent if q.opcode == packer.REQUEST and q.op == EV_PROBE]
    assert len(seen) > 100 and len(set(seen)) == len(seen)
    ticks = {t for _, t, _ in seen}
    assert len(ticks) > len(seen) * 0.9, "nor does the time, which everybody knows"
    first = [q for q in seen if bool(q[2]) == bool(keys)]
    xors = {a[2] ^ b[2] if keys else (a[0] ^ b[0]) << 16 | a[1] ^ b[1] for a, b in itertools.pairwise(first)}
    assert len(xors) == len(first) - 1


@pytest.mark.parametrize("keys", [KEYS, {}], ids=["ours", "foreign"])
def test_an_answer_counts_for_a_while_and_while_few_were_asked_since(keys: dict[str, int]) -> None:
    rig = rig_that_asks(keys)
    rounds = [asked(rig, rig.drain())]
    answer(rig, rounds[0][OWN])
    while len(rounds) < 10:
        if more := asked(rig, rig.advance(1_000)):
            rounds.append(more)
    assert ports_used(rig) == {OWN}
    for old in rounds[: -4 if keys else -1]:
        answer(rig, old[VICTIM], VICTIM)
    assert ports_used(rig) == {OWN}, "too many were asked since"
    answer(rig, rounds[-4 if keys else -1][VICTIM], VICTIM)
    assert ports_used(rig) == {OWN, VICTIM}
    lone = rig_that_asks(keys)
    question = asked(lone, lone.drain())
    lone.endpoint.set_port(lone.now, VICTIM, False)  # so that no probe goes there any more
    lone.advance(5 * S)
    lone.endpoint.set_port(lone.now, VICTIM, True)
    answer(lone, question[VICTIM], VICTIM)
    answer(lone, list(asked(lone, lone.advance(2 * S)).values())[-1])
    assert len(ports_used(lone)) == 1, "too long ago"


def test_a_nonce_is_sent_back_whoever_asks_and_no_other_probe_needs_one() -> None:
    for keys in (KEYS, {}):
        rig = Rig(ports=2, rtr=keys)
        (reply,) = only(rig.receive(packer.request(EV_PROBE, 9, key=0xABCDEF)), RESPONSE)
        assert (reply.psn, reply.key) == (9, 0xABCDEF)
        (reply,) = only(rig.receive(packer.request(EV_PROBE, 10)), RESPONSE)
        assert reply.key == 0
        assert rig.endpoint.probe(rig.now, rig.peer, 1, 5, 77)
        (own,) = rig.drain()
        assert own.key == 0


def test_a_peer_with_keys_is_believed_by_its_nonce_alone() -> None:
    rig = rig_that_asks(KEYS)
    questions = asked(rig, rig.drain())
    for question in questions.values():
        say(rig, packer.response(EV_PROBE, question.psn, question.ticks))
        say(rig, packer.response(0, question.psn, question.ticks, question.key))
    assert not only(rig.drain(), RESPONSE) and not rig.post(512)
    other = rig.endpoint.add_peer()
    raw = packer.response(EV_PROBE, questions[OWN].psn, questions[OWN].ticks, questions[OWN].key)
    assert not rig.receive(raw, peer=other), "another peer's answer is none"
    answer(rig, questions[OWN])
    assert ports_used(rig) == {OWN}
    answer(rig, questions[OWN])
    assert ports_used(rig) == {OWN}


WEATHERS: dict[str, dict[str, Any]] = {
    "loss": {"loss": 0.4},
    "reordering": {"reorder": 0.5, "reorder_delay_us": 3_000.0},
    "duplication": {"duplicate": 0.5},
    "all of it": {"loss": 0.3, "reorder": 0.3, "reorder_delay_us": 1_000.0, "duplicate": 0.4},
}


def connected(seed: int, has_keys: bool, **weather: Any) -> tuple[Pair, QueuePair, QueuePair]:
    net = Pair(planes=4, seed=seed, endpoint=EndpointConfig(proves_addresses=True, secret=seed))
    net.set_faults(**weather)
    a, b = net.connect(rtr=RtrAttributes(**({"port_key": 5, "peer_port_key": 5} if has_keys else {})))
    net.b.register(length=1 << 20, rkey=1)
    return net, a, b


def write(net: Pair, qp: QueuePair) -> None:
    qp.post_write(net.now_ps, 1 << 16, remote_va=0, rkey=1)
    net.run_until_completions(0, 1, limit_us=60 * S)
    assert [c["status"] for c in net.a.poll_completions(Pair.SEND_CQ)] == [CompletionStatus.SUCCESS.value]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weather", WEATHERS)
@pytest.mark.parametrize("has_keys", [True, False], ids=["ours", "foreign"])
def test_honest_peers_find_each_other_in_any_weather(has_keys: bool, weather: str, seed: int) -> None:
    net, qp, _ = connected(seed, has_keys, **WEATHERS[weather])
    write(net, qp)
    net.set_faults(**dict.fromkeys(WEATHERS[weather], 0.0))
    net.run_us(5 * S)
    before = net.data_packets_sent(0)
    for _ in range(8):
        write(net, qp)
    assert all(b > a for a, b in zip(before, net.data_packets_sent(0), strict=True)), "every plane is used in the end"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("has_keys", [True, False], ids=["ours", "foreign"])
def test_honest_peers_find_each_other_where_no_plane_works_both_ways(has_keys: bool, seed: int) -> None:
    net, qp, _ = connected(seed, has_keys)
    for plane in range(4):
        net.faults(0, plane).black_hole = plane != 2
        net.faults(1, plane).black_hole = plane != 0
    write(net, qp)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("has_keys", [True, False], ids=["ours", "foreign"])
def test_honest_peers_find_each_other_where_the_path_that_answers_take_is_dead(has_keys: bool, seed: int) -> None:
    """One plane is left, and who answers there is never told that its answers are lost."""
    net, qp, peer = connected(seed, has_keys)
    net.watch_paths()
    for side, plane in itertools.product((0, 1), range(4)):
        net.faults(side, plane).black_hole = (side, plane) != (0, 0)
    net.run_us(5_000)
    evs = peer.evs()
    values = [int(value) for value in evs["value"][evs["port"] == 0]]
    taken = [value for value in values if net.last_polled_ps(1, 0, value) is not None]
    assert 0 < len(taken) < len(values) / 2
    for value in taken:
        net.set_ev_dead(1, 0, value)
    net.faults(1, 0).black_hole = False
    write(net, qp)
