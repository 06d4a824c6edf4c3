"""Forged packets during honest traffic and network faults, at queue pairs in every state, one seed at a time.

python -m tests.hostile.swarm 7          one seed
python -m tests.hostile.swarm 0 300      all of them from 0 to 299

Whatever an unknown host or a blind forger sends: honest messages arrive whole and in order, no queue pair leaves its
state, and nothing grows. An on-path attacker can do more unless packets are encrypted. It still cannot crash us, write
outside of what was opened to the peer, nor make anything grow.
"""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import numpy as np

from softmrc import _core
from softmrc.config import (
    CcProfile,
    EndpointConfig,
    EvProfile,
    InitAttributes,
    RtrAttributes,
    RtsAttributes,
)
from softmrc.engine import QpState, QueuePair, Trim
from softmrc.engine.pair import Pair
from softmrc.errors import InternalError

from .forger import OPCODES, WRITES, Forger, Truth, forge

FILL, GUARD = 0xA5, 128
MTU, SIZE, RKEY = 512, 1 << 15, 0x123
WINDOW = 8 * 128
STATES: tuple[tuple[str, ...], ...] = (
    (),
    ("init",),
    ("init", "rtr"),
    ("init", "rtr", "rts"),
    ("init", "error"),
    ("init", "rtr", "rts", "error"),
    ("init", "rtr", "rts", "destroy"),
)
REACHED = (QpState.RESET, QpState.INIT, QpState.RTR, QpState.RTS, QpState.ERROR, QpState.ERROR, None)


class Side:
    """One node: a queue pair that carries messages, one in every state that carries none, and memory with guards."""

    def __init__(self, run: Run, number: int) -> None:
        self.run, self.number = run, number
        self.endpoint = run.pair.sides[number]
        self.whole = np.full(SIZE + 2 * GUARD, FILL, dtype=np.uint8)
        self.endpoint.register(self.whole[GUARD : GUARD + SIZE], rkey=RKEY)
        content = np.frombuffer(run.rng.randbytes(SIZE), dtype=np.uint8).copy()
        self.content = content
        self.source = self.endpoint.register(content, rkey=RKEY + 1)
        self.stranger = self.endpoint.add_peer()
        self.idle_cq = self.endpoint.create_cq()
        self.idle: list[QueuePair] = []

    def make_idle(self) -> None:
        for number, way in enumerate(STATES):
            qp = self.endpoint.create_qp(self.run.idle_qpn + number)
            for step in way:
                self._take(qp, step)
            self.idle.append(qp)

    def _take(self, qp: QueuePair, step: str) -> None:
        now, run = self.run.pair.now_ps, self.run
        if step == "init":
            qp.init(InitAttributes(send_cq=self.idle_cq, recv_cq=self.idle_cq))
        elif step == "rtr":
            qp.rtr(now, RtrAttributes(peer=0, dest_qpn=run.nobody, first_psn=run.idle_psn, mtu=MTU, **run.keys))
        elif step == "rts":
            qp.rts(now, RtsAttributes(first_psn=run.idle_psn))
        elif step == "error":
            qp.error(now)
        else:
            qp.destroy(now)

    def truth(self) -> Truth:
        """Of some queue pair here: mostly the one at work."""
        run = self.run
        if run.rng.random() < 0.5:
            mine, theirs = run.qpns[self.number], run.qpns[1 - self.number]
            spans = [(psn, psn + run.packets + WINDOW) for psn in run.psns]
            return Truth(mine, theirs, spans[self.number], spans[1 - self.number], run.key, RKEY, MTU, SIZE)
        span = (run.idle_psn, run.idle_psn + WINDOW)
        qpn = run.idle_qpn + run.rng.randrange(len(STATES) + 1)
        return Truth(qpn, run.nobody, span, span, run.key, RKEY, MTU, SIZE)


class Run:
    """One seed, played once."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.forger = rng.choice(list(Forger))
        self.planes = rng.choice((1, 2, 4))
        self.key = rng.getrandbits(64) | 1
        self.keys: dict[str, Any] = {"port_key": self.key, "peer_port_key": self.key} if rng.random() < 0.5 else {}
        trims = rng.random() < 0.5
        self.pair = Pair(
            self.planes,
            seed,
            endpoint=EndpointConfig(
                timestamps=rng.random() < 0.8,
                trim_nack=trims,
                peer_trim_nack=trims,
                announces_ports=True,
                answers_per_s=rng.choice((0, 20_000)),
                max_events=256,
            ),
            ev_profile=EvProfile(count=8 * self.planes, spares=4 * self.planes),
            cc_profile=CcProfile(algorithm=rng.choice(("nscc", "fixed_window")), trimming=trims),
        )
        self.loss = rng.choice((0.0, 0.02))
        self.pair.set_faults(
            loss=self.loss,
            duplicate=rng.choice((0.0, 0.05)),
            reorder=rng.choice((0.0, 0.2)),
            reorder_delay_us=30.0,
            mark=rng.choice((0.0, 0.2)),
            trim=rng.choice((0.0, 0.05)) if trims else 0.0,
        )
        self.qpns = (rng.randrange(0x10000, 0x400000), rng.randrange(0x400000, 0x800000))
        self.idle_qpn, self.nobody = rng.randrange(0x800000, 0xF00000), rng.randrange(0xF00000, 0xFFFFFF)
        self.psns = (rng.getrandbits(24), rng.getrandbits(24))
        self.idle_psn = rng.getrandbits(24)
        self.messages = rng.randrange(2, 7)
        self.packets = self.messages * SIZE // self.messages // MTU + self.messages
        self.sides = (Side(self, 0), Side(self, 1))
        self.qps = self._connect()
        for side in self.sides:
            side.make_idle()
        # Who knows everything ends a connection with the first lie of some kinds; others it can go on telling.
        self.opcodes = OPCODES if self.is_blind else rng.sample(OPCODES, rng.choice((1, 2, len(OPCODES))))

    @property
    def is_blind(self) -> bool:
        return self.forger is not Forger.ON_PATH

    def _connect(self) -> tuple[QueuePair, QueuePair]:
        pair, made = self.pair, []
        for number, endpoint in enumerate(pair.sides):
            qp = endpoint.create_qp(self.qpns[number])
            qp.init(InitAttributes(send_cq=pair.SEND_CQ, recv_cq=pair.RECV_CQ))
            other = 1 - number
            rtr = RtrAttributes(peer=0, dest_qpn=self.qpns[other], first_psn=self.psns[other], mtu=MTU, **self.keys)
            qp.rtr(pair.now_ps, rtr)
            qp.rts(pair.now_ps, RtsAttributes(first_psn=self.psns[number]))
            for wr_id in range(self.messages):
                qp.post_receive(wr_id)
            made.append(qp)
        return made[0], made[1]

    def post(self) -> None:
        length = SIZE // self.messages
        for qp, side in zip(self.qps, self.sides, strict=True):
            for n in range(self.messages):
                at = n * length
                qp.post_write(
                    self.pair.now_ps, length, remote_va=at, rkey=RKEY, source=side.source, offset=at, imm=n, wr_id=n
                )

    def inject(self) -> None:
        rng = self.rng
        side = rng.choice(self.sides)
        raw = forge(rng, side.truth(), not self.is_blind, self.planes, self.opcodes)
        trim = Trim.NONE
        if raw and raw[0] in WRITES and rng.random() < 0.2:
            trim = rng.choice((Trim.TRIMMED, Trim.TRIMMED_LAST_HOP))
            raw = raw[: 32 + (4 if len(raw) > 8 and raw[8] & 0x10 else 0)]
        peer = rng.choice((_core.NO_PEER, side.stranger, 7)) if self.forger is Forger.STRANGER else 0
        side.endpoint.handle_datagram(
            self.pair.now_ps,
            raw,
            peer=peer,
            port=rng.randrange(self.planes + (rng.random() < 0.05)),
            entropy=rng.getrandbits(32),
            congestion=rng.random() < 0.2,
            trim=trim,
        )

    def play(self) -> None:
        self.post()
        down = set[tuple[int, int]]()
        for _ in range(self.rng.randrange(40, 120)):
            self.pair.run_us(self.rng.uniform(0.1, 8.0))
            for _ in range(self.rng.choice((0, 1, 4, 16))):
                self.inject()
            if self.planes > 1 and self.rng.random() < 0.1:
                port = (self.rng.randrange(2), self.rng.randrange(1, self.planes))
                down ^= {port}
                self.pair.sides[port[0]].set_port(self.pair.now_ps, port[1], port not in down)
        for number, plane in sorted(down):
            self.pair.sides[number].set_port(self.pair.now_ps, plane, True)
        for side in self.sides:
            assert (side.whole[:GUARD] == FILL).all() and (side.whole[-GUARD:] == FILL).all(), "a write out of bounds"
        self.pair.run_us(4_000_000 if self.is_blind else 50_000)
        for number, side in enumerate(self.sides):
            self._check_bounded(number, side)
            if self.is_blind:
                self._check_unharmed(number, side)
        # Without keys a forger is believed until the peer was answered and objects, which losses may prevent.
        if self.forger is Forger.STRANGER or (self.is_blind and (self.keys or not self.loss)):
            for number, side in enumerate(self.sides):
                self._check_planes(number, side)

    def _check_bounded(self, number: int, side: Side) -> None:
        assert len(side.endpoint.poll_events()) <= 256
        waiting = 0
        while side.endpoint.poll_transmit(self.pair.now_ps) is not None:
            waiting += 1
            assert waiting < 20_000, f"side {number} does not stop sending"

    def _check_unharmed(self, number: int, side: Side) -> None:
        other = self.sides[1 - number]
        name = f"side {number}"
        assert self.qps[number].state == QpState.RTS, f"{name} is in {self.qps[number].state.name}"
        sends, receives = side.endpoint.poll_completions(0), side.endpoint.poll_completions(1)
        wanted = list(range(self.messages))
        assert [(int(c["wr_id"]), int(c["status"])) for c in sends] == [(n, 0) for n in wanted], f"{name} sent {sends}"
        assert [int(c["imm"]) for c in receives] == wanted, f"{name} received {receives}"
        written = self.messages * (SIZE // self.messages)
        wrong = side.whole[GUARD : GUARD + SIZE] != np.append(other.content[:written], [FILL] * (SIZE - written))
        assert not wrong.any(), f"{name}: {wrong.sum()} bytes are wrong"
        for qp, state in zip(side.idle, REACHED, strict=True):
            assert state is None or qp.state == state, f"{name}: {qp!r} was in {state}"
        assert not len(side.endpoint.poll_completions(side.idle_cq)), f"{name}: an idle queue pair completed something"

    def _check_planes(self, number: int, side: Side) -> None:
        """Every port is up by the last honest word about it, and is used."""
        before = self.pair.data_packets_sent(number)
        self.qps[number].post_write(self.pair.now_ps, SIZE, remote_va=0, rkey=RKEY, source=side.source)
        self.pair.run_until_completions(number, 1, 1_000_000)
        sent = [now - then for now, then in zip(self.pair.data_packets_sent(number), before, strict=True)]
        assert all(sent), f"side {number} sent {sent} packets by its ports"


def failures(first: int, last: int) -> list[str]:
    """One line for every seed that fails, which reproduces it."""
    found = []
    for seed in range(first, last):
        try:
            Run(seed).play()
        except (AssertionError, InternalError) as error:
            found.append(f"python -m tests.hostile.swarm {seed}   # {error}")
    return found


if __name__ == "__main__":
    first = int(sys.argv[1])
    wrong = failures(first, int(sys.argv[2]) if len(sys.argv) > 2 else first + 1)
    print("\n".join(wrong) or "no harm done")
    sys.exit(bool(wrong))
