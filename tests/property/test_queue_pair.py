"""A queue pair next to a plain model: the states and who may call what, and the receiving half's rules.

Packets come from the tests' own packer. The model of the receiver is a set of PSNs and two numbers; whatever the engine
answers must follow from them.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import packer
from packer import ONLY, ONLY_IMM, PSN_MASK, Parsed, signed24
from rig import QPN, RKEY, Rig, only
from softmrc.config import EndpointConfig, InitAttributes, RtrAttributes, RtsAttributes
from softmrc.engine import CompletionStatus, Endpoint, QpState
from softmrc.errors import ConfigError, UsageError

RESET, INIT, RTR, RTS, ERROR = QpState.RESET, QpState.INIT, QpState.RTR, QpState.RTS, QpState.ERROR


# spec: qp-states
class StatesMachine(RuleBasedStateMachine):
    """Which call is legal when. An illegal one raises UsageError, a bad value ConfigError; neither changes a thing."""

    @initialize()
    def create(self) -> None:
        self.endpoint = Endpoint(EndpointConfig())
        self.endpoint.add_ev_profile()
        self.endpoint.add_cc_profile()
        self.cq = self.endpoint.create_cq()
        self.peer = self.endpoint.add_peer()
        self.qp = self.endpoint.create_qp(QPN)
        self.state = RESET
        self.sends: list[int] = []
        self.receives: list[int] = []
        self.next_id = 0

    def transition(self, call: Any, allowed: tuple[QpState, ...], after: QpState) -> None:
        if self.state in allowed:
            call()
            self.state = after
        else:
            with pytest.raises(UsageError):
                call()

    @rule(good=st.booleans())
    def init(self, good: bool) -> None:
        if not good and self.state == RESET:
            with pytest.raises(ConfigError):
                self.qp.init(InitAttributes(send_cq=9))
            return
        self.transition(self.qp.init, (RESET,), INIT)

    @rule(good=st.booleans())
    def rtr(self, good: bool) -> None:
        if not good and self.state == INIT:
            with pytest.raises(ConfigError):
                self.qp.rtr(0, RtrAttributes(dest_qpn=1))
            return
        self.transition(lambda: self.qp.rtr(0, RtrAttributes(peer=self.peer, dest_qpn=7)), (INIT,), RTR)

    @rule(good=st.booleans())
    def rts(self, good: bool) -> None:
        if not good and self.state == RTR:
            with pytest.raises(ConfigError):
                self.qp.rts(0, RtsAttributes(mpr=1))
            return
        self.transition(lambda: self.qp.rts(0, RtsAttributes()), (RTR,), RTS)

    @rule()
    def error(self) -> None:
        self.transition(lambda: self.qp.error(0), (INIT, RTR, RTS, ERROR), ERROR)
        if self.state == ERROR:
            self.expect_flush()

    @rule()
    def refused_by_the_peer(self) -> None:
        """Only a queue pair in RTS listens to acknowledgements, and to refusals only of what it has sent."""
        while self.endpoint.poll_transmit(0) is not None:
            pass
        raw = packer.ack(QPN, PSN_MASK, 0xFFFF, packer.SYN_INVALID)
        self.endpoint.handle_datagram(0, raw, peer=self.peer)
        if self.state == RTS and self.sends:
            self.state = ERROR
            self.expect_flush(CompletionStatus.REMOTE_INVALID)

    def expect_flush(self, first: CompletionStatus = CompletionStatus.FLUSHED) -> None:
        done = self.endpoint.poll_completions(self.cq)
        assert sorted(done["wr_id"].tolist()) == sorted(self.sends + self.receives)
        ids = [int(c["wr_id"]) for c in done]
        assert [i for i in ids if i in self.sends] == self.sends
        assert [i for i in ids if i in self.receives] == self.receives
        for record in done:
            is_first = self.sends and record["wr_id"] == self.sends[0]
            assert record["status"] == (first if is_first else CompletionStatus.FLUSHED).value
        self.sends, self.receives = [], []

    @rule(imm=st.none() | st.integers(0, 5))
    def post_write(self, imm: int | None) -> None:
        def call() -> None:
            self.qp.post_write(0, 10, remote_va=0, rkey=1, imm=imm, wr_id=self.next_id)

        if self.state == RTS:
            call()
            self.sends.append(self.next_id)
            self.next_id += 1
        else:
            with pytest.raises(UsageError):
                call()

    @rule()
    def post_receive(self) -> None:
        if self.state in (INIT, RTR, RTS):
            self.qp.post_receive(self.next_id)
            self.receives.append(self.next_id)
            self.next_id += 1
        else:
            with pytest.raises(UsageError):
                self.qp.post_receive(0)

    @rule()
    def drain(self) -> None:
        """A queue pair sends nothing before RTS; its node may tell the peer how the ports are."""
        while (transmit := self.endpoint.poll_transmit(0)) is not None:
            assert packer.parse(transmit[0]).opcode == packer.REQUEST or self.state in (RTS, ERROR)

    @precondition(lambda self: self.state != RESET)
    @rule()
    def destroy_and_create(self) -> None:
        self.qp.destroy(0)
        assert not len(self.endpoint.poll_completions(self.cq)), "destroying completes nothing"
        with pytest.raises(UsageError):
            self.qp.query()
        self.qp = self.endpoint.create_qp(QPN)
        self.state, self.sends, self.receives = RESET, [], []

    @invariant()
    def states_agree(self) -> None:
        if hasattr(self, "qp"):
            assert self.qp.state == self.state


class ReceiverMachine(RuleBasedStateMachine):
    """Single-packet messages in any order: placement, release, immediates, SACKs and ACKs, from a set of PSNs."""

    @initialize(first=st.sampled_from([0, 1, 1000, PSN_MASK - 3, PSN_MASK - 200]), units=st.sampled_from([8, 9, 255]))
    def connect(self, first: int, units: int) -> None:
        self.rig = Rig(peer_first_psn=first, mtu=512, rtr={"mpr_dest": units, "max_wimm_dest": 16}, memory=1 << 21)
        for wr_id in range(4000):
            self.rig.qp.post_receive(wr_id)
        self.first = first
        self.window = units * 128
        self.expected = 0  # counted from the first PSN, so that it never wraps
        self.arrived: set[int] = set()  # beyond `expected`
        self.image = self.rig.memory.copy()
        self.completed = 0
        self.bytes = 0

    def message(self, n: int) -> tuple[bytes, int | None, int, int]:
        """(payload, immediate, rqmsn, offset) of the nth message, the same whenever it is sent. Each third has one."""
        payload = bytes([n & 0xFF, n >> 8 & 0xFF]) * (1 + n * 7 % 200)
        return payload, n * 31 if n % 3 == 0 else None, -(-n // 3), n * 512 % len(self.rig.memory)

    def deliver(self, n: int, **more: Any) -> list[Parsed]:
        payload, imm, rqmsn, at = self.message(n)
        raw = packer.write(
            QPN, (self.first + n) & PSN_MASK, payload, opcode=ONLY if imm is None else ONLY_IMM, va=self.rig.va + at,
            rkey=RKEY, msn=n, rqmsn=rqmsn, imm=imm, **more,
        )  # fmt: skip
        return self.rig.receive(raw)

    @rule(ahead=st.integers(0, 30), ask=st.booleans(), rtx=st.booleans())
    def in_window(self, ahead: int, ask: bool, rtx: bool) -> None:
        n = self.expected + ahead
        payload, _, _, at = self.message(n)
        is_new = n not in self.arrived
        before = self.expected
        if is_new:
            self.image[at : at + len(payload)] = list(payload)
            self.arrived.add(n)
        while self.expected in self.arrived:
            self.arrived.remove(self.expected)
            self.expected += 1
        sent = self.deliver(n, ack_request=ask, rtx=rtx)
        if self.expected > before:
            (ack,) = only(sent, packer.ACK)
            self.check_ack(ack)
        else:
            assert not only(sent, packer.ACK), "nothing new was released"
        if ask or rtx or not is_new:
            self.check_sacks(sent, n)

    @rule(ahead=st.sampled_from([600, 900, 1022]))
    def far_ahead_in_window(self, ahead: int) -> None:
        """A wide window needs more room, which must not disturb what is there. Immediates have a separate limit."""
        n = self.expected + ahead
        n += self.message(n)[1] is not None
        payload, _, _, at = self.message(n)
        if n not in self.arrived:
            self.image[at : at + len(payload)] = list(payload)
            self.arrived.add(n)
        self.check_sacks(self.deliver(n, ack_request=True), n)

    @precondition(lambda self: self.expected > 0)
    @rule(behind=st.integers(1, 40))
    def old(self, behind: int) -> None:
        n = max(0, self.expected - behind)
        sent = self.deliver(n)
        (ack,) = only(sent, packer.ACK)
        self.check_ack(ack)
        self.check_sacks(sent, n)

    @rule(beyond=st.integers(0, 2000))
    def beyond(self, beyond: int) -> None:
        psn = (self.first + self.expected + self.window + beyond) & PSN_MASK
        sent = self.rig.receive(packer.write(QPN, psn, b"stray", va=self.rig.va, rkey=RKEY))
        assert [(p.opcode, p.reason, p.nack_psn) for p in sent] == [(packer.NACK, packer.OUT_OF_WINDOW, psn)]

    @rule(probe_id=st.integers(0, 0xFFFF))
    def probe(self, probe_id: int) -> None:
        sent = self.rig.receive(packer.probe(QPN, probe_id))
        (sack,) = only(sent, packer.SACK)
        assert sack.answers_probe and sack.probe_id == probe_id
        self.check_sack(sack)
        assert len(only(sent, packer.ACK)) == (self.expected > 0)

    def check_ack(self, ack: Parsed) -> None:
        assert ack.syndrome == packer.SYN_ACK
        assert ack.msn == (self.expected - 1) & 0xFFFF
        assert ack.psn == (self.first + self.expected - 1) & PSN_MASK

    def check_sacks(self, sent: list[Parsed], trigger: int) -> None:
        (sack,) = only(sent, packer.SACK)
        assert sack.ack_psn == (self.first + trigger) & PSN_MASK
        self.check_sack(sack)

    def check_sack(self, sack: Parsed) -> None:
        assert sack.cack == sack.psn == (self.first + self.expected - 1) & PSN_MASK
        assert sack.ooo == len(self.arrived)
        assert sack.rcvd_bytes >= self.bytes
        self.bytes = sack.rcvd_bytes
        base = self.expected + signed24(sack.base - (self.first + self.expected))
        for bit in range(64):
            n = base + bit
            if n >= self.expected:
                assert bool(sack.bitmap >> bit & 1) == (n in self.arrived), f"message {n} of {sorted(self.arrived)[:9]}"

    @invariant()
    def memory_and_immediates_agree(self) -> None:
        if not hasattr(self, "rig"):
            return
        assert (self.rig.memory == self.image).all()
        self.rig.check_guards()
        for record in self.rig.receives():
            while self.message(self.completed)[1] is None:
                self.completed += 1
            payload, imm, _, _ = self.message(self.completed)
            assert self.completed < self.expected, "an immediate came before its turn"
            assert (int(record["imm"]), int(record["length"])) == (imm, len(payload))
            self.completed += 1
        due = [n for n in range(self.completed, self.expected) if self.message(n)[1] is not None]
        assert not due, f"the immediates of {due} are overdue"
        assert self.rig.qp.query()["out_of_order"] == len(self.arrived)


CONFIG = settings(
    max_examples=120,
    stateful_step_count=60,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
TestStates = StatesMachine.TestCase
TestStates.settings = CONFIG
TestReceiver = ReceiverMachine.TestCase
TestReceiver.settings = CONFIG
