"""Queue pairs that are gone: what they took stays acknowledged, what comes later is refused, and nothing is written."""

from __future__ import annotations

import pytest

import packer
from packer import ACK, NACK, ONLY_IMM
from rig import QPN, RKEY, Rig
from softmrc.engine import CompletionStatus, RefusedPacket
from softmrc.engine.pair import Pair


def write(rig: Rig, psn: int, msn: int, data: bytes = b"hello") -> bytes:
    return packer.write(QPN, psn, data, va=rig.va, rkey=RKEY, msn=msn, ticks=psn + 100)


def departed() -> Rig:
    """One that has taken a message, and is gone."""
    rig = Rig()
    rig.receive(write(rig, 0, 0))
    rig.qp.destroy(rig.now)
    return rig


# spec: departed
def test_what_was_owed_when_the_queue_pair_went_is_sent() -> None:
    rig = Rig()
    rig.endpoint.handle_datagram(rig.now, write(rig, 0, 0), peer=rig.peer)
    rig.qp.destroy(rig.now)
    (ack,) = rig.drain()
    assert (ack.opcode, ack.dqp, ack.psn, ack.msn, ack.syndrome) == (ACK, 0x80, 0, 0, packer.SYN_ACK)
    assert not rig.drain(), "once"


def test_what_arrived_is_acknowledged_again_and_what_comes_later_is_refused() -> None:
    rig = Rig(ports=2)
    for psn in range(3):
        rig.receive(write(rig, psn, psn))
    rig.qp.destroy(rig.now)
    before = rig.memory.copy()
    (ack,) = rig.receive(write(rig, 1, 1), port=1)
    assert (ack.opcode, ack.psn, ack.msn) == (ACK, 2, 2) and rig.routes[-1][0] == 1
    (ack,) = rig.receive(packer.probe(QPN, 7))
    assert (ack.opcode, ack.psn, ack.msn) == (ACK, 2, 2)
    ack, nack = rig.receive(write(rig, 3, 3, b"after"), entropy=9)
    assert (ack.opcode, ack.psn) == (ACK, 2), "first what has arrived, then what has not"
    assert (nack.opcode, nack.dqp, nack.reason) == (NACK, 0x80, packer.UNEXPECTED)
    assert (nack.psn, nack.nack_psn, nack.entropy, nack.ticks) == (3, 3, 9, 103)
    assert (rig.memory == before).all()
    assert rig.endpoint.stats()["departed_answers"] == 3


def test_part_of_a_message_is_no_message() -> None:
    rig = Rig(mtu=512)
    rig.receive(packer.write(QPN, 0, bytes(512), opcode=packer.FIRST, dmalen=1024, va=rig.va, rkey=RKEY))
    rig.qp.destroy(rig.now)
    for _ in range(2):
        (nack,) = rig.receive(packer.write(QPN, 0, bytes(512), opcode=packer.FIRST, dmalen=1024, va=rig.va, rkey=RKEY))
        assert nack.opcode == NACK, "its packet had come, but it never will as a whole"


def test_an_immediate_that_found_no_receive_stays_refused() -> None:
    rig = Rig()
    rig.receive(write(rig, 0, 0))
    rig.receive(packer.write(QPN, 1, b"x", opcode=ONLY_IMM, va=rig.va, rkey=RKEY, msn=1))
    rig.qp.destroy(rig.now)
    ack, nack = rig.receive(packer.write(QPN, 1, b"x", opcode=ONLY_IMM, va=rig.va, rkey=RKEY, msn=1))
    assert (ack.opcode, ack.msn, nack.opcode, nack.nack_psn) == (ACK, 0, NACK, 1)


def test_only_questions_of_its_own_peer_are_answered() -> None:
    rig = departed()
    stranger = rig.endpoint.add_peer()
    rig.refusals()
    assert not rig.receive(write(rig, 0, 0), peer=stranger)
    assert not rig.receive(packer.sack(QPN, 0)) and not rig.receive(packer.nack(QPN, 0, packer.UNEXPECTED))
    assert not rig.receive(packer.ack(QPN, 0, 0)), "or two that are gone would talk for ever"
    assert rig.refusals() == [RefusedPacket.WRONG_PEER], "what its own peer still confirms is late, not wrong"
    assert rig.endpoint.stats()["late_answers"] == 3


def test_a_queue_pair_that_never_met_a_peer_leaves_nothing() -> None:
    rig = Rig()
    rig.endpoint.create_qp(0x99).destroy(rig.now)
    assert not rig.receive(packer.write(0x99, 0, b"x", va=rig.va, rkey=RKEY))


def test_a_number_that_is_used_again_belongs_to_the_new_one() -> None:
    rig = departed()
    rig.endpoint.create_qp(QPN)
    assert not rig.receive(write(rig, 0, 0))


def test_a_flood_of_questions_is_not_hoarded_nor_are_the_departed() -> None:
    rig = departed()
    for _ in range(5000):
        rig.endpoint.handle_datagram(rig.now, write(rig, 0, 0), peer=rig.peer)
    assert len(rig.drain()) <= 1024


@pytest.mark.parametrize("seed", range(40))
def test_whoever_leaves_with_everything_leaves_nobody_in_doubt(seed: int) -> None:
    """Under any loss: what was all there when the receiver left is confirmed in the end."""
    pair = Pair(planes=(1, 2, 4)[seed % 3], seed=seed)
    a, b = pair.connect(mtu=512)
    pair.set_faults(loss=0.05 * (1 + seed % 5))
    remote = pair.b.register(length=1 << 16, rkey=1)
    count = 1 + seed % 7
    b.post_receive(0)
    for i in range(count):
        imm = 1 if i == count - 1 else None
        a.post_write(pair.now_ps, 100 + 700 * (seed % 3), remote_va=0, rkey=remote.rkey, imm=imm)
    pair.run_until_completions(1, 1, 1e9, cq=Pair.RECV_CQ)
    b.destroy(pair.now_ps)
    pair.run_until_completions(0, count, 1e9)
    assert pair.a.poll_completions()["status"].tolist() == [CompletionStatus.SUCCESS.value] * count


@pytest.mark.parametrize("seed", range(20))
def test_whoever_leaves_in_the_middle_says_so(seed: int) -> None:
    """Nothing that was not taken is confirmed, and no end waits for a timer to learn it."""
    pair = Pair(planes=4, seed=seed)
    a, b = pair.connect(mtu=512)
    pair.set_faults(loss=0.02)
    remote = pair.b.register(length=1 << 20, rkey=1)
    for _ in range(50):
        a.post_write(pair.now_ps, 20_000, remote_va=0, rkey=remote.rkey)
    pair.run_us(20 + seed)
    b.destroy(pair.now_ps)
    pair.run_until_completions(0, 50, 1e9)
    statuses = pair.a.poll_completions()["status"].tolist()
    failed = statuses.index(CompletionStatus.PEER_ERROR.value)
    assert set(statuses[:failed]) <= {CompletionStatus.SUCCESS.value}
    assert set(statuses[failed + 1 :]) <= {CompletionStatus.FLUSHED.value}
    assert a.stats()["timeouts"] <= 1


def test_what_the_controller_denied_carries_no_last_word_either() -> None:
    rig = Rig(ports=2)
    rig.receive(write(rig, 0, 0))
    allowed = set()
    for index, ev in enumerate(rig.qp.evs()):
        if ev["port"] == 0:
            rig.qp.deny_ev(rig.now, index)
        else:
            allowed.add(int(ev["value"]))
    rig.qp.destroy(rig.now)
    rig.drain()
    rig.routes.clear()
    for _ in range(8):
        assert len(rig.receive(write(rig, 0, 0), port=0)) == 1
    assert {port for port, _ in rig.routes} == {1}
    assert {entropy for _, entropy in rig.routes} <= allowed


def test_a_last_word_takes_a_port_on_which_the_peer_hears() -> None:
    rig = Rig(ports=2)
    rig.receive(write(rig, 0, 0))
    rig.receive(packer.request(0, 5, mask=0b100))
    rig.endpoint.handle_datagram(rig.now, write(rig, 1, 1), peer=rig.peer)
    rig.routes.clear()
    rig.qp.destroy(rig.now)
    assert len(rig.drain()) == 1
    for _ in range(4):
        assert len(rig.receive(write(rig, 0, 0), port=0)) == 1
    assert {port for port, _ in rig.routes} == {1}


def test_one_that_may_not_speak_does_not_silence_the_others() -> None:
    rig = Rig()
    other = rig.another_qp(QPN + 1)
    for qpn in (QPN, QPN + 1):
        rig.receive(packer.write(qpn, 0, b"x", va=rig.va, rkey=RKEY))
    for ev in range(4):
        rig.qp.deny_ev(rig.now, ev)
    rig.qp.destroy(rig.now)
    other.destroy(rig.now)
    rig.drain()
    for _ in range(50):
        assert not rig.receive(write(rig, 0, 0))
    (ack,) = rig.receive(packer.write(QPN + 1, 0, b"x", va=rig.va, rkey=RKEY))
    assert (ack.opcode, ack.psn) == (ACK, 0)
