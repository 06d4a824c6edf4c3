"""Two peers on one device, and one of them lies: whatever keys it knows, it writes only what was offered to itself.

The engine is fed by hand, so the malicious peer can send what no sender of ours would; then the same over sockets.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import packer
from softmrc.config import CcProfile, EndpointConfig, EvProfile, InitAttributes, RtrAttributes, RtsAttributes
from softmrc.device import CompletionStatus, Device
from softmrc.engine import Endpoint, EventType, QpState, RefusedPacket
from softmrc.errors import ConfigError, UsageError
from udp.loopback import drain

MTU = 512
SIZE = 4096
FILL = 0xA5
VA = 0x10_0000
TOP = 1 << 64


class Host:
    """A node with two peers, each in a separate domain, and memory that is offered to one, to the other, to none."""

    def __init__(self) -> None:
        self.endpoint = Endpoint(EndpointConfig())
        self.endpoint.add_ev_profile(EvProfile(count=4))
        self.endpoint.add_cc_profile(CcProfile())
        self.endpoint.create_cq()
        self.memory = np.full((4, SIZE), FILL, dtype=np.uint8)
        self.domains = [self.endpoint.create_domain() for _ in range(2)]
        for row, domain in enumerate(self.domains):
            self.endpoint.register(self.memory[row], va=VA, rkey=100 + row, domain=domain)
        self.endpoint.register(self.memory[2], va=TOP - SIZE, rkey=102, domain=self.domains[1])
        self.peers = [self.endpoint.add_peer() for _ in range(2)]
        self.qps = [self.endpoint.create_qp(10 + i) for i in range(2)]
        for i in range(2):
            self.connect(i)

    def connect(self, i: int) -> None:
        self.qps[i].init(InitAttributes(domain=self.domains[i]))
        self.qps[i].rtr(0, RtrAttributes(peer=self.peers[i], dest_qpn=20 + i, mtu=MTU))
        self.qps[i].rts(0, RtsAttributes())
        self.endpoint._native.post_receive(10 + i, 0)

    def hear(self, peer: int, raw: bytes) -> list[Any]:
        self.endpoint.handle_datagram(0, raw, peer=self.peers[peer])
        replies = []
        while (sent := self.endpoint.poll_transmit(0)) is not None:
            replies.append(packer.parse(sent[0]))
        return replies

    def untouched(self) -> bool:
        return bool((self.memory == FILL).all())


# What the second peer, the malicious one, may say; its own memory is keys 101 and 102.
LIES: dict[str, dict[str, Any]] = {
    "the key of what was offered to the other": {"rkey": 100, "va": VA},
    "a key that nobody has": {"rkey": 0, "va": VA},
    "one byte before": {"rkey": 101, "va": VA - 1},
    "beyond the end": {"rkey": 101, "va": VA + SIZE},
    "over the end": {"rkey": 101, "va": VA + SIZE - 63},
    "far away": {"rkey": 101, "va": TOP - 1},
    "around the end of addresses": {"rkey": 102, "va": TOP - 63},
    "before the top region": {"rkey": 102, "va": TOP - SIZE - 1},
    "from its end to the bottom": {"rkey": 102, "va": 0},
}


# spec: protection-domain placement
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_what_was_not_offered_is_not_written(lie: dict[str, Any]) -> None:
    host = Host()
    replies = host.hear(1, packer.write(11, 0, b"x" * 64, **lie))
    assert host.untouched()
    assert [r.syndrome for r in replies if r.opcode == packer.ACK] == [packer.SYN_ACCESS]
    assert host.endpoint.stats()["refused_remote_access"] == 1
    refused = [e["code"] for e in host.endpoint.poll_events() if e["type"] == EventType.packet_refused.value]
    assert refused == [RefusedPacket.REMOTE_ACCESS]
    assert [qp.state for qp in host.qps] == [QpState.RTS, QpState.ERROR], "the honest peer is none the worse"
    assert not [r for r in host.hear(0, packer.write(10, 0, b"y" * 64, rkey=100, va=VA)) if r.opcode == packer.NACK]
    assert (host.memory[0, :64] == ord("y")).all() and (host.memory[1:] == FILL).all()


def test_the_same_write_is_taken_from_whom_the_memory_was_offered_to() -> None:
    host = Host()
    host.hear(1, packer.write(11, 0, b"x" * 64, rkey=102, va=TOP - 64))
    host.hear(0, packer.write(10, 0, b"y" * 64, rkey=100, va=VA))
    assert (host.memory[2, -64:] == ord("x")).all() and (host.memory[0, :64] == ord("y")).all()
    assert host.qps[0].state == host.qps[1].state == QpState.RTS


def test_a_message_without_bytes_opens_nothing_whatever_it_names() -> None:
    host = Host()
    for psn, key in enumerate((100, 101, 0, 0xFFFFFFFF)):
        host.hear(1, packer.write(11, psn, b"", rkey=key, va=TOP - 1))
    host.hear(1, packer.write(11, 4, b"", rkey=100, va=VA, dmalen=64))
    assert host.untouched() and host.endpoint.stats()["refused_malformed"] == 1, (
        "bytes that did not come are no message"
    )


def test_what_was_deregistered_is_closed_to_everybody() -> None:
    host = Host()
    region = host.endpoint._regions[101]
    host.hear(1, packer.write(11, 0, b"x", rkey=101, va=VA))
    host.endpoint.deregister(region)
    assert [r.syndrome for r in host.hear(1, packer.write(11, 1, b"z", rkey=101, va=VA)) if r.opcode == packer.ACK]
    assert host.memory[1, 0] == ord("x") and host.qps[1].state == QpState.ERROR


def test_a_number_that_is_given_again_opens_nothing_of_its_last_owner() -> None:
    host = Host()
    host.qps[1].destroy(0)
    host.qps[1] = host.endpoint.create_qp(11)
    host.domains[1] = host.endpoint.create_domain()
    host.connect(1)
    host.hear(1, packer.write(11, 0, b"x" * 64, rkey=101, va=VA))
    assert host.untouched() and host.qps[1].state == QpState.ERROR


def test_domains_and_keys_that_do_not_exist_are_the_callers_mistake() -> None:
    host = Host()
    with pytest.raises(ConfigError, match="domain"):
        host.endpoint.create_qp(12).init(InitAttributes(domain=77))
    with pytest.raises(UsageError):
        host.endpoint.register(host.memory[3], rkey=103, domain=77)


# spec: message-order
def test_no_sequence_of_lies_about_lengths_reports_more_than_came() -> None:
    """Whatever a peer says of its messages, a receive tells the bytes that arrived for it."""
    taken = sum(tell_lies_about_lengths(random.Random(seed)) for seed in range(300))
    assert taken > 10, "hardly a message of several packets was taken"


def tell_lies_about_lengths(rng: random.Random) -> int:
    """How many messages of more than one packet were taken for good."""
    host = Host()
    taken = 0
    came, psn, msn, rqmsn = 0, 0, 0, 0
    for _ in range(rng.randrange(1, 8)):
        opcode, size, dmalen = (packer.LAST_IMM if came else packer.FIRST), MTU, 2 * MTU  # the truth
        if rng.random() < 0.3:
            opcode = rng.choice([packer.FIRST, packer.MIDDLE, packer.LAST_IMM, packer.ONLY_IMM])
        if rng.random() < 0.3:
            size = rng.choice([0, 8, MTU])
        if rng.random() < 0.3:
            dmalen = rng.choice([size, size + MTU, came + size, 3 * MTU, 0xFFFFFFF8, 0xFFFFFFFF])
        raw = packer.write(
            11, psn, b"x" * size, opcode=opcode, rkey=101, va=VA, dmalen=dmalen, msn=msn, rqmsn=rqmsn, imm=1
        )
        host.hear(1, raw)
        if host.qps[1].state != QpState.RTS or host.endpoint.stats()["refused_malformed"]:
            break
        psn, came = psn + 1, came + size
        if opcode in (packer.LAST_IMM, packer.ONLY_IMM):
            found = [c for c in host.endpoint.poll_completions(0) if c["status"] == CompletionStatus.SUCCESS.value]
            assert [c["length"] for c in found] == [came], f"after {psn} packets, the last {packer.parse(raw)}"
            host.endpoint._native.post_receive(11, 0)
            taken += came > MTU
            came, msn, rqmsn = 0, msn + 1, rqmsn + 1
    return taken


# The same over sockets.


def accept(device: Device, other: Device, memory: Any) -> tuple[Any, Any, Any]:
    """A queue pair to `other`, in a separate domain, and what is offered to it."""
    domain = device.create_domain()
    region = device.register(memory, remote_write=True, domain=domain)
    near = device.create_qp(device.create_cq(), domain=domain)
    far = other.create_qp(other.create_cq())
    for qp, end in ((near, far), (far, near)):
        qp.init()
        qp.rtr(qp.device.add_peer(end.reached_at), dest_qpn=end.qpn, first_psn=end.first_psn)
        qp.rts()
    return region, near, far


def test_over_sockets_a_peer_writes_what_was_offered_to_it_and_nothing_else() -> None:
    with Device() as device, Device() as honest, Device() as liar:
        own, others, secret = (bytearray(64) for _ in range(3))
        offered, _, far = accept(device, liar, own)
        to_honest, _, honest_far = accept(device, honest, others)
        sent_from = device.register(secret)
        source = liar.register(b"x" * 64)
        far.post_write(source, 0, 64, remote_va=0, rkey=offered.rkey)
        assert [c.status for c in drain(far.send_cq, 1)] == [CompletionStatus.SUCCESS] and own == b"x" * 64
        far.post_write(source, 0, 64, remote_va=0, rkey=to_honest.rkey)
        assert [c.status for c in drain(far.send_cq, 1)] == [CompletionStatus.REMOTE_ACCESS]
        assert others == secret == bytes(64) and device.stats()["refused_remote_access"] == 1
        with pytest.raises(UsageError, match="remote_write"):
            _ = sent_from.rkey
        honest_far.post_write(honest.register(b"y" * 64), 0, 64, remote_va=0, rkey=to_honest.rkey)
        assert [c.status for c in drain(honest_far.send_cq, 1)] == [CompletionStatus.SUCCESS] and others == b"y" * 64


def test_memory_that_cannot_be_written_can_be_sent_from_and_not_be_offered() -> None:
    with Device() as device:
        assert device.register(b"constant").length == 8
        with pytest.raises(ConfigError, match="writable"):
            device.register(b"constant", remote_write=True)
        keys = {device.register(bytearray(8), remote_write=True).rkey for _ in range(32)}
        gaps = {abs(a - b) for a in keys for b in keys if a != b}
        assert len(keys) == 32 and min(gaps) > 1, "keys in a row can be guessed"
