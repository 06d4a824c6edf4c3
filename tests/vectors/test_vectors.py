"""Golden packets, one at least for every opcode: what we read in them, and that we write them byte for byte."""

from __future__ import annotations

import pytest
from golden import load, names

from softmrc.wire import CcState, Opcode, Packet, Refused, Timestamp

MEANING = {
    "write_first": Packet(
        "write_first", dqp=0x11, psn=256, rqmsn=2, msn=7, timestamp=0x1234,
        va=0x7F0000001000, rkey=0xABCD, dmalen=3072, payload=b"first 12",
    ),
    "write_middle": Packet(
        "write_middle", dqp=0x11, psn=257, retransmission=True, rqmsn=2, msn=7,
        va=0x7F0000001400, rkey=0xABCD, dmalen=3072, payload=b"midd",
    ),
    "write_last": Packet(
        "write_last", dqp=0x11, psn=258, ack_request=True, rqmsn=2, msn=7,
        va=0x7F0000001800, rkey=0xABCD, dmalen=3072, payload=b"last!",
    ),
    "write_last_imm": Packet(
        "write_last_imm", solicited=True, dqp=0x123456, psn=0xFFFFFE, ack_request=True, retransmission=True,
        rqmsn=0xFFFF, msn=0xFFFE, timestamp=Timestamp(0xFFFD, fine=True),
        va=0xFFFFFFFFFFFFFF00, rkey=0xDEADBEEF, dmalen=0xFFFFFFFF, imm=0xCAFEF00D, payload=b"abc",
    ),
    "write_only": Packet(
        "write_only", migration=True, p_key=0x8001, dqp=0xFFFFFF, psn=0xFFFFFF, msn=0xFFFF, va=1, payload=b"hi",
    ),
    "write_only_imm": Packet(
        "write_only_imm", solicited=True, dqp=0x12, psn=0, ack_request=True, rqmsn=3, msn=8,
        va=0x7F0000002000, rkey=0xABCD, imm=42, payload=b"data",
    ),
    "acknowledge": Packet("acknowledge", dqp=0x21, psn=258, syndrome="ack", msn=8),
    "endpoint_request": Packet(
        "endpoint_request", psn=0xBEEF, op="port_status_update", vendor=0x5A, port_status_mask=0x1F6, timestamp=1234,
    ),
    "endpoint_request_keyed": Packet(
        "endpoint_request", psn=0xBEEF, op="port_status_update", vendor=0x5A, port_status_mask=0x1F6, timestamp=1234,
        key=0x0123456789ABCDEF,
    ),
    "endpoint_response_keyed": Packet(
        "endpoint_response", psn=0xBEEF, op="port_status_update", timestamp=1234, key=0xFEDCBA9876543210,
    ),
    "endpoint_request_nonce": Packet(
        "endpoint_request", psn=1, op="ev_probe", timestamp=1234, key=0x0123456789ABCDEF,
    ),
    "endpoint_response_nonce": Packet(
        "endpoint_response", psn=1, op="ev_probe", timestamp=1234, key=0x0123456789ABCDEF,
    ),
    "endpoint_request_ev_probe": Packet(
        "endpoint_request", psn=1, op="ev_probe", timestamp=Timestamp(0xFFFF, fine=True),
    ),
    "endpoint_response": Packet("endpoint_response", psn=0xBEEF, op="ev_probe", timestamp=1234),
    "endpoint_response_other_reading": Packet("endpoint_response", psn=0xBEEF, op="ev_probe", timestamp=1234),
    "sack": Packet(
        "sack", dqp=0x21, mark="skip_once", ack_psn_offset=3, entropy=0x1C00A, spdcid=0x11, dpdcid=0x21, cack_psn=256,
        cc_flags=5, mpr=8, sack_offset=1, bitmap=0b10110, cc=CcState(0x1234, 3, True, 1, 0x010203),
    ),
    "sack_probe": Packet(
        "sack", dqp=0x21, mark="always_skip", answers_probe=True, ack_psn_offset=0x8001 - 0x10000, entropy=0xFFFFFFFF,
        spdcid=0xFFFE, dpdcid=0xFFFD, cack_psn=63, cc_flags=15, sack_offset=-63, bitmap=1 << 63 | 1,
        cc=CcState(0, 0x7FFF, False, 0x7F, 0xFFFFFF),
    ),
    "nack": Packet(
        "nack", dqp=0x21, reason="trimmed", vendor=0x77, entropy=0x2C00B, spdcid=0x11, dpdcid=0x21, nack_psn=258,
        cc_flags=10, tx_timestamp=0x4321,
    ),
    "probe": Packet("probe", dqp=0x11, vendor=9, probe_id=0x8001, spdcid=0x21, dpdcid=0x11, timestamp=0xBEEF),
}  # fmt: skip

READ_ONLY = {"endpoint_response_other_reading"}


# spec: opcodes
def test_every_page_has_a_meaning_and_every_opcode_a_page() -> None:
    assert names() == sorted(MEANING)
    assert {packet.opcode for packet in MEANING.values()} == set(Opcode)


# spec: bth-flags psn-meaning reth-everywhere meth-counts sack-layout nack-reasons
@pytest.mark.parametrize("name", MEANING)
def test_bytes_are_read_as_they_were_meant(name: str) -> None:
    assert Packet.parse(load(name)) == MEANING[name]


@pytest.mark.parametrize("name", sorted(MEANING.keys() - READ_ONLY))
def test_meaning_is_written_byte_for_byte(name: str) -> None:
    assert bytes(MEANING[name]).hex(" ") == load(name).hex(" ")


# spec: endpoint-op-position
def test_both_readings_of_an_endpoint_response_mean_the_same() -> None:
    assert Packet.parse(load("endpoint_response")) == Packet.parse(load("endpoint_response_other_reading"))


@pytest.mark.parametrize("name", MEANING)
def test_no_prefix_of_a_packet_is_a_packet(name: str) -> None:
    data = load(name)
    payload = len(MEANING[name].payload) if MEANING[name].opcode.is_write else 0
    headers = len(data) - payload - MEANING[name].bth.pad
    is_longer = name.endswith(("_keyed", "_nonce"))
    without_key = headers - 8 if is_longer else None  # a whole packet as well, of a peer without keys
    for size in set(range(headers)) - {without_key}:
        with pytest.raises(Refused):
            Packet.parse(data[:size])


def test_probe_answer_tells_its_probe_and_what_arrived() -> None:
    answer = Packet.parse(load("sack_probe"))
    assert answer.probe_id == Packet.parse(load("probe")).probe_id
    assert answer.received == [0, 63]
    assert Packet.parse(load("sack")).received == [258, 259, 261]


def test_a_reader_sees_nonces_and_only_that_there_are_keys() -> None:
    for kind in ("request", "response"):
        assert "nonce 0123456789abcdef" in str(Packet.parse(load(f"endpoint_{kind}_nonce")))
        keyed = str(Packet.parse(load(f"endpoint_{kind}_keyed")))
        assert "keyed" in keyed and "0123456789abcdef" not in keyed and "fedcba98" not in keyed
