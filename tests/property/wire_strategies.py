"""Hypothesis strategies for everything that has a form on the wire."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Any

from hypothesis import strategies as st

from softmrc.wire import (
    CcState,
    Ecn,
    EndpointOp,
    Frame,
    Mark,
    NackReason,
    Opcode,
    Outer,
    Packet,
    Path,
    Route,
    Sum,
    Syndrome,
    Timestamp,
)


def unsigned(width: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << width) - 1)


def signed(width: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (width - 1)), (1 << (width - 1)) - 1)


flags = st.booleans()
timestamps = st.builds(Timestamp, unsigned(16), flags, unsigned(4))
cc_states = st.builds(CcState, unsigned(16), unsigned(15), flags, unsigned(7), unsigned(24))
octets = unsigned(8)

BTH = {
    "solicited": flags,
    "migration": flags,
    "p_key": unsigned(16),
    "dqp": unsigned(24),
    "ack_request": flags,
    "retransmission": flags,
    "psn": unsigned(24),
}
WRITE = BTH | {
    "rqmsn": unsigned(16),
    "msn": unsigned(16),
    "va": unsigned(64),
    "rkey": unsigned(32),
    "dmalen": unsigned(32),
    "timestamp": st.none() | timestamps,
}
PAYLOAD = {"payload": st.binary(min_size=1, max_size=70)}
PEERS = {"spdcid": unsigned(16), "dpdcid": unsigned(16)}
CONTROL: dict[Opcode, dict[str, st.SearchStrategy[Any]]] = {
    Opcode.ACKNOWLEDGE: {"syndrome": st.sampled_from(Syndrome) | octets, "msn": unsigned(24)},
    Opcode.ENDPOINT_REQUEST: {
        "op": st.sampled_from(EndpointOp),
        "vendor": octets,
        "port_status_mask": unsigned(32),
        "key": unsigned(64),
        "timestamp": timestamps,
    },
    Opcode.ENDPOINT_RESPONSE: {"op": st.sampled_from(EndpointOp), "key": unsigned(64), "timestamp": timestamps},
    Opcode.SACK: PEERS
    | {
        "mark": st.sampled_from(Mark),
        "answers_probe": flags,
        "ack_psn_offset": signed(16),
        "entropy": unsigned(32),
        "cack_psn": unsigned(24),
        "cc_flags": unsigned(4),
        "mpr": octets,
        "sack_offset": signed(16),
        "bitmap": unsigned(64),
        "cc": cc_states,
    },
    Opcode.NACK: PEERS
    | {
        "reason": st.sampled_from(NackReason) | octets,
        "vendor": octets,
        "entropy": unsigned(32),
        "nack_psn": unsigned(24),
        "cc_flags": unsigned(4),
        "tx_timestamp": unsigned(16),
    },
    Opcode.PROBE: PEERS | {"vendor": octets, "probe_id": unsigned(16), "timestamp": timestamps},
}


def packets_of(opcode: Opcode) -> st.SearchStrategy[Packet]:
    fields = WRITE | PAYLOAD if opcode.is_write else BTH | CONTROL[opcode]
    if opcode.has_imm:
        fields = fields | {"imm": unsigned(32)}
    return st.fixed_dictionaries(fields).map(lambda given: Packet(opcode, **given))


packets = st.sampled_from(Opcode).flatmap(packets_of)
trimmed_packets = st.tuples(st.sampled_from([op for op in Opcode if op.is_write]), st.fixed_dictionaries(WRITE)).map(
    lambda pair: Packet(pair[0], trimmed=True, **pair[1])
)

usids = st.integers(1, 0xFFFF)
ipv6 = unsigned(128).map(IPv6Address)
ipv4 = unsigned(32).map(IPv4Address)
ports = unsigned(16)
paths = st.builds(Path.through, unsigned(32), st.lists(usids, min_size=1, max_size=54))
outers = st.builds(
    Outer, ipv6, paths | ipv6.map(Path), flow_label=unsigned(20), dscp=st.sampled_from([0, 4, 8, 46, 63]),
    ecn=st.sampled_from(Ecn), hop_limit=octets,
)  # fmt: skip
macs = st.binary(min_size=6, max_size=6).map(lambda raw: raw.hex(":"))


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    is_trimmed = draw(flags)
    is_v4 = draw(flags)
    addresses: st.SearchStrategy[Any] = ipv4 if is_v4 else ipv6
    return Frame(
        draw(trimmed_packets if is_trimmed else packets),
        Route(draw(addresses), draw(addresses), draw(ports)),
        flow_label=0 if is_v4 else draw(unsigned(20)),
        dscp=draw(st.sampled_from([12, 16] if is_trimmed else [0, 4, 8, 46, 63])),
        ecn=draw(st.sampled_from(Ecn)),
        hop_limit=draw(octets),
        outer=draw(st.none() | outers),
        source_mac=draw(macs),
        destination_mac=draw(macs),
        identification=draw(unsigned(16)) if is_v4 else 0,
        dont_fragment=draw(flags) if is_v4 else True,
        udp_checksum=draw(st.sampled_from([Sum.ABSENT, Sum.GOOD])),
    )
