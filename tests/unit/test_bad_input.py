"""What network and caller may do wrong: counted, told, dropped or refused; never a crash, never a stray write."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import packer
from rig import QPN, RKEY, Rig
from softmrc import _core
from softmrc.config import EndpointConfig
from softmrc.engine import Endpoint, QpState, RefusedPacket, Trim
from softmrc.engine.pair import Pair
from softmrc.errors import ConfigError, UsageError

VA = 0x1000


def good_write(psn: int = 0, payload: bytes = b"abcd", **more: Any) -> bytes:
    return packer.write(QPN, psn, payload, va=VA, rkey=RKEY, **more)


SAMPLES = {
    "write": good_write(),
    "write with immediate": packer.write(QPN, 0, b"abcd", va=VA, rkey=RKEY, opcode=packer.ONLY_IMM, imm=1),
    "timestamped write": good_write(ticks=3),
    "sack": packer.sack(QPN, 0),
    "nack": packer.nack(QPN, 0, packer.NO_RESOURCE),
    "ack": packer.ack(QPN, 0, 0),
    "probe": packer.probe(QPN, 1),
    "request": packer.request(1, 5),
    "response": packer.response(1, 5),
}


@pytest.mark.parametrize("name", SAMPLES)
# spec: bad-input
def test_every_truncation_is_refused(name: str) -> None:
    raw = SAMPLES[name]
    rig = Rig()
    for size in range(len(raw)):
        if name.endswith("write") or name.startswith("write"):
            cut_into_payload = size > len(raw) - 4 and size % 4
            if size > len(raw) - 4 and not cut_into_payload:
                continue
        assert not rig.receive(raw[:size])
    assert rig.untouched()
    assert rig.stats()["refused_malformed"] == rig.stats()["datagrams_received"]
    assert set(rig.refusals()) == {RefusedPacket.MALFORMED}


@pytest.mark.parametrize("name", [n for n in SAMPLES if "write" not in n])
def test_control_packets_have_exactly_one_length(name: str) -> None:
    rig = Rig()
    assert not rig.receive(SAMPLES[name] + bytes(4))
    assert rig.refusals() == [RefusedPacket.MALFORMED]


@pytest.mark.parametrize("opcode", [op for op in range(256) if op not in range(0xC6, 0xCC) and op not in
                                    (0xD1, 0xD8, 0xD9, 0xDC, 0xDD, 0xDE)][::7] + [0xC5, 0xCC, 0xD0, 0xDF])  # fmt: skip
def test_unknown_opcodes_are_refused(opcode: int) -> None:
    rig = Rig()
    assert not rig.receive(bytes([opcode]) + good_write()[1:])
    assert rig.refusals() == [RefusedPacket.MALFORMED]


def test_a_version_we_do_not_speak_is_refused() -> None:
    rig = Rig()
    raw = bytearray(good_write())
    raw[1] |= 1
    assert not rig.receive(bytes(raw))
    assert rig.refusals() == [RefusedPacket.MALFORMED]


@pytest.mark.parametrize("dqp", [0, 1, 3, QPN + 1, 0xFFFFFF])
def test_a_queue_pair_that_does_not_exist(dqp: int) -> None:
    rig = Rig()
    raw = packer.write(dqp, 0, b"abcd", va=VA, rkey=RKEY)
    assert not rig.receive(raw)
    assert rig.refusals() == [RefusedPacket.UNKNOWN_QP] and rig.stats()["refused_unknown_qp"] == 1


def test_data_for_the_nodes_own_number_and_node_requests_for_a_queue_pair() -> None:
    rig = Rig()
    assert not rig.receive(packer.write(2, 0, b"abcd", va=VA, rkey=RKEY))
    request = bytearray(packer.request(1, 5))
    request[5:8] = QPN.to_bytes(3, "big")
    assert not rig.receive(bytes(request))
    assert rig.refusals() == [RefusedPacket.UNKNOWN_QP] * 2


def test_the_wrong_peer_is_refused_everywhere() -> None:
    rig = Rig()
    stranger = rig.endpoint.add_peer()
    for peer in (stranger, _core.NO_PEER):
        for name in ("write", "sack", "nack", "ack", "probe"):
            assert not rig.receive(SAMPLES[name], peer=peer)
    assert rig.untouched() and rig.qp.state == QpState.RTS
    assert rig.refusals() == [RefusedPacket.WRONG_PEER] * 10
    assert not rig.receive(SAMPLES["request"], peer=_core.NO_PEER)
    assert rig.refusals() == [RefusedPacket.UNKNOWN_PEER]


def test_answers_to_questions_never_asked() -> None:
    rig = Rig()
    for op in (0, 1):
        assert not rig.receive(packer.response(op, 77))
    assert rig.refusals() == [RefusedPacket.UNKNOWN_ANSWER] * 2


def test_a_port_that_does_not_exist_and_a_trimmed_acknowledgement() -> None:
    rig = Rig(ports=2)
    assert not rig.receive(good_write(), port=2)
    assert not rig.receive(packer.sack(QPN, 0), trim=Trim.TRIMMED)
    assert rig.refusals() == [RefusedPacket.MALFORMED] * 2 and rig.untouched()


def test_packets_before_the_queue_pair_is_ready() -> None:
    endpoint = Endpoint(EndpointConfig())
    peer = endpoint.add_peer()
    endpoint.create_qp(QPN)
    for raw in (good_write(), packer.sack(QPN, 0), packer.probe(QPN, 0)):
        endpoint.handle_datagram(0, raw, peer=peer)
    assert endpoint.stats()["refused_wrong_state"] == 3
    assert endpoint.poll_transmit(0) is None


# Addresses.

SIZE = 1 << 16
OUTSIDE = {
    "before": (VA - 1, 4),
    "across the start": (VA - 2, 4),
    "across the end": (VA + SIZE - 3, 4),
    "after": (VA + SIZE, 4),
    "far after": (VA + (1 << 40), 4),
    "wrapping": ((1 << 64) - 2, 4),
    "wrapping exactly to the region": ((1 << 64) - 4, 8),
    "zero": (0, 4),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_address_outside_the_region_kills_the_connection_and_writes_nothing(name: str) -> None:
    va, size = OUTSIDE[name]
    rig = Rig(va=VA, memory=SIZE)
    rig.endpoint.poll_events()
    (nak,) = rig.receive(packer.write(QPN, 0, b"z" * size, va=va, rkey=RKEY))
    assert nak.syndrome == packer.SYN_ACCESS and rig.qp.state == QpState.ERROR
    assert rig.untouched() and rig.stats()["refused_remote_access"] == 1
    assert RefusedPacket.REMOTE_ACCESS in rig.refusals()


@pytest.mark.parametrize("va", [0, (1 << 64) - SIZE])
def test_a_region_at_either_end_of_the_address_space(va: int) -> None:
    rig = Rig(va=va, memory=SIZE)
    rig.receive(packer.write(QPN, 0, b"tail", va=va + SIZE - 4, rkey=RKEY))
    rig.receive(packer.write(QPN, 1, b"head", va=va, rkey=RKEY))
    assert rig.memory[:4].tobytes() == b"head" and rig.memory[-4:].tobytes() == b"tail"
    (nak,) = [p for p in rig.receive(packer.write(QPN, 2, b"tails", va=va + SIZE - 4, rkey=RKEY)) if "msn" in p.fields]
    assert nak.syndrome == packer.SYN_ACCESS
    rig.check_guards()


def test_a_region_that_wraps_or_is_empty_is_refused() -> None:
    endpoint = Endpoint(EndpointConfig())
    for region in ({"length": 2, "va": (1 << 64) - 1}, {"length": 0}):
        with pytest.raises(UsageError):
            endpoint.register(rkey=9, **region)
    endpoint.register(length=1, va=(1 << 64) - 1, rkey=9)
    with pytest.raises(UsageError, match="in use"):
        endpoint.register(length=1, rkey=9)


def test_forged_and_stale_keys() -> None:
    rig = Rig()
    (nak,) = rig.receive(packer.write(QPN, 0, b"z", va=VA, rkey=RKEY ^ 0x8000))
    assert nak.syndrome == packer.SYN_ACCESS and rig.untouched()
    rig = Rig()
    late = rig.endpoint.register(np.zeros(64, dtype=np.uint8), va=0, rkey=5)
    rig.endpoint.deregister(late)
    (nak,) = rig.receive(packer.write(QPN, 0, b"z", va=0, rkey=5))
    assert nak.syndrome == packer.SYN_ACCESS


@pytest.mark.parametrize("psn", [1024, 5000, 1 << 22, (1 << 23) - 1])
def test_a_psn_far_ahead_is_nacked_and_far_behind_is_old(psn: int) -> None:
    rig = Rig()
    (nack,) = rig.receive(good_write(psn))
    assert nack.reason == packer.OUT_OF_WINDOW
    (sack,) = rig.receive(good_write(-psn & 0xFFFFFF))
    assert sack.opcode == packer.SACK
    assert rig.untouched() and rig.qp.state == QpState.RTS


# Noise.


def mutated(rng: random.Random, raw: bytes) -> bytes:
    out = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        out[rng.randrange(len(out))] = rng.getrandbits(8)
    return bytes(out[: rng.randint(0, len(out))] if rng.random() < 0.2 else out)


@pytest.mark.parametrize("seed", range(8))
def test_noise_at_rate_never_writes_outside_and_never_breaks_a_promise(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(ports=2, rtr={"max_wimm_dest": 16})
    for i in range(64):
        rig.qp.post_receive(i)
    rig.post(100_000)
    for i in range(4000):
        sample = rng.choice(list(SAMPLES.values()))
        raw = mutated(rng, sample) if i % 3 else rng.randbytes(rng.randint(0, 120))
        rig.now += rng.randint(0, 2_000_000)
        trim = Trim.TRIMMED if rng.random() < 0.1 else Trim.NONE
        rig.receive(raw, port=rng.randrange(3), entropy=rng.getrandbits(32), ce=rng.random() < 0.2, trim=trim)
        if i % 50 == 0:
            rig.advance(50)
            if rig.qp.state == QpState.ERROR:
                rig = Rig(ports=2, rtr={"max_wimm_dest": 16})
                rig.post(100_000)
    rig.check_guards()


def test_noise_beside_honest_traffic_does_not_stop_it() -> None:
    """Datagrams that fail their checks, at ten times the rate of honest ones, on a connection that is at work."""
    rng = random.Random(5)
    pair = Pair(2)
    a, _ = pair.connect()
    target = np.zeros(1 << 18, dtype=np.uint8)
    pair.b.register(target, rkey=1)
    source_bytes = np.frombuffer(rng.randbytes(1 << 18), dtype=np.uint8).copy()
    source = pair.a.register(source_bytes, rkey=1)
    a.post_write(pair.now_ps, 1 << 18, remote_va=0, rkey=1, source=source)
    for _ in range(600):
        pair.run_us(0.5)
        for endpoint in pair.sides:
            endpoint.handle_datagram(pair.now_ps, rng.randbytes(rng.randint(0, 60)), peer=0)
            endpoint.handle_datagram(pair.now_ps, packer.write(3, 0, b"noise"), peer=0)
    pair.run_us(1000)
    assert len(pair.a.poll_completions()) == 1
    assert np.array_equal(target, source_bytes)


# Calls.


@pytest.mark.parametrize("qpn", [0, 2, 1 << 24])
def test_queue_pair_numbers(qpn: int) -> None:
    with pytest.raises(ConfigError):
        Endpoint(EndpointConfig()).create_qp(qpn)


@pytest.mark.parametrize("length", [101, 1 << 31])
def test_a_post_must_fit_its_source(length: int) -> None:
    pair = Pair(1)
    a, _ = pair.connect()
    source = pair.a.register(bytearray(100), rkey=1)
    with pytest.raises((ConfigError, UsageError)):
        a.post_write(0, length, remote_va=0, rkey=1, source=source)
    with pytest.raises(ConfigError):
        a.post_write(0, 50, remote_va=0, rkey=1, source=source, offset=51)
