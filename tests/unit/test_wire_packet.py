"""Packets as Python values: building, reading, comparing, and each way to be refused."""

from __future__ import annotations

import copy
import pickle

import pytest

from softmrc import wire
from softmrc._core import wire as core
from softmrc.errors import ConfigError, RemoteError, UsageError
from softmrc.wire import EndpointOp, Mark, NackReason, Opcode, Packet, Refused, Sack, Syndrome, Timestamp, Write

GOOD_WRITE: dict[str, object] = {"dqp": 0x11, "psn": 5, "va": 0x1000, "rkey": 7, "payload": b"hello"}


def write(**given: object) -> Packet:
    return Packet("write_only", **(GOOD_WRITE | given))


def test_fields_are_given_and_read_side_by_side() -> None:
    packet = write(msn=9, ack_request=True)
    assert (packet.opcode, packet.dqp, packet.psn, packet.msn) == (Opcode.WRITE_ONLY, 0x11, 5, 9)
    assert packet.bth.ack_request and packet.ack_request
    assert isinstance(packet.body, Write) and packet.body.payload == b"hello"
    assert packet.bth.pad == 3
    assert packet.dmalen == 5


@pytest.mark.parametrize("opcode", [Opcode.SACK, 0xDC, "SACK", "sack"])
def test_an_opcode_is_a_member_its_number_or_its_name(opcode: Opcode | int | str) -> None:
    assert Packet(opcode, cack_psn=7) == Packet(Opcode.SACK, body=Sack(cack_psn=7), psn=7)


def test_bth_repeats_what_the_body_says() -> None:
    assert Packet("sack", cack_psn=77).psn == 77
    assert Packet("nack", nack_psn=78).psn == 78
    assert Packet("endpoint_request").dqp == wire.ENDPOINT_QPN == Packet("endpoint_response").dqp
    assert Packet("sack", cack_psn=77, psn=3).psn == 3


def test_a_packet_is_a_value() -> None:
    packet = write()
    assert packet == write() and hash(packet) == hash(write())
    assert packet != write(psn=6) and packet != "packet"
    assert pickle.loads(pickle.dumps(packet)) == packet == copy.deepcopy(packet)
    assert packet.replace(psn=6) == write(psn=6)
    assert packet.replace(payload=b"12345678", dmalen=8).bth.pad == 0
    with pytest.raises(UsageError, match=r"replace\(psn=1\)"):
        packet.psn = 1


def test_a_repr_tells_the_story() -> None:
    assert repr(write(ack_request=True)) == "<Packet WRITE_ONLY qp 000011 psn 5 msn 0 va 1000 rkey 7 len 5/5 ackreq>"
    sack = Packet("sack", dqp=1, cack_psn=10, sack_offset=1, bitmap=0b1011, ack_psn_offset=4, mark="skip_once")
    assert repr(sack).startswith("<Packet SACK qp 000001 cack 10 ack +4 ev 00000000 SKIP_ONCE sack +1..+2,+4 ")
    assert "answers probe 32769" in repr(Packet("sack", answers_probe=True, ack_psn_offset=-32767))
    assert " sack +0..+63 " in repr(Packet("sack", bitmap=(1 << 64) - 1))
    assert " sack -1,+62 " in repr(Packet("sack", sack_offset=-1, bitmap=1 << 63 | 1))
    assert "PSN_OOR_WINDOW" in repr(Packet("nack", reason="psn_oor_window"))
    assert "0x55" in repr(Packet("nack", reason=0x55))
    assert "EV_PROBE" in repr(Packet("endpoint_request"))
    assert "ports 000001fe" in repr(Packet("endpoint_request", op="port_status_update", port_status_mask=0x1FE))
    assert "len -/9 trimmed rtx" in repr(Packet("write_last", trimmed=True, dmalen=9, retransmission=True))


def test_descriptions_align() -> None:
    lines = [write().describe(), Packet("sack").describe(), Packet("nack").describe(), Packet("probe").describe()]
    assert {line.index(" qp ") for line in lines} == {17}


@pytest.mark.parametrize(
    ("opcode", "given", "field"),
    [
        *(("write_only", GOOD_WRITE | given, field) for given, field in (
            ({"dqp": 1 << 24}, "Bth.dqp"), ({"psn": -1}, "Bth.psn"), ({"psn": 1.5}, "Bth.psn"),
            ({"p_key": "x"}, "Bth.p_key"), ({"ack_request": 2}, "Bth.ack_request"), ({"va": 1 << 64}, "Write.va"),
            ({"msn": 1 << 16}, "Write.msn"), ({"payload": b"", "dmalen": 5}, "Write.payload"),
            ({"payload": "text"}, "Write.payload"), ({"payload_size": 9}, "Write.payload_size"),
            ({"imm": 1}, "Write.imm"), ({"timestamp": 1 << 16}, "Write.timestamp"),
            ({"trimmed": True}, "Write.trimmed"), ({"bitmap": 1}, "bitmap"),
        )),
        ("send_only", {}, "opcode"),
        (0xC5, {}, "opcode"),
        ("write_only_imm", {"payload": b"x"}, "Write.imm"),
        ("sack", {"mark": 3}, "Sack.mark"),
        ("sack", {"sack_offset": 1 << 15}, "Sack.sack_offset"),
        ("sack", {"cc": 1}, "Sack.cc"),
        ("nack", {"reason": 256}, "Nack.reason"),
        ("nack", {"reason": "bored"}, "Nack.reason"),
        ("acknowledge", {"msn": 1 << 24}, "Ack.msn"),
        ("endpoint_request", {"op": 2}, "EndpointRequest.op"),
        ("probe", {"timestamp": "now"}, "Probe.timestamp"),
        ("probe", {"body": Sack()}, "body"),
        ("sack", {"body": Sack(), "mpr": 1}, "body"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_by_its_name(opcode: str | int, given: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Packet(opcode, **given)
    assert caught.value.field == field and caught.value.problem
    assert field in str(caught.value) and "(got " in str(caught.value)


def test_an_unknown_field_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"Its fields: .*probe_id.*psn"):
        Packet("probe", probe=1)
    with pytest.raises(ConfigError, match=r"Its fields: .*payload"):
        write().replace(bitmap=1)
    with pytest.raises(AttributeError, match="WRITE_ONLY packet has no field 'bitmap'"):
        _ = write().bitmap


# What is refused in bytes. Each example differs from a good packet in one thing.

GOOD = bytes(write())
SACK = bytes(Packet("sack"))


def with_byte(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "shorter than its headers"),
        (GOOD[:11], "shorter than its headers"),
        (GOOD[:31], "shorter than its headers"),
        (GOOD[:32], "shorter than its headers"),
        (with_byte(GOOD, 0, 0x0A), "an opcode that MRC does not have"),
        (with_byte(GOOD, 1, 0x31), "a transport version other than 0"),
        (GOOD[:-1], "padding bits that disagree with the length"),
        (SACK + b"\0", "bytes after the end of a control packet"),
        (with_byte(SACK, 1, 0x10), "padding bits that disagree with the length"),
        (with_byte(SACK, 13, 0x60), "a field whose value has no meaning"),
        (with_byte(bytes(Packet("endpoint_request")), 13, 2), "a field whose value has no meaning"),
        (with_byte(bytes(Packet("endpoint_response")), 13, 0x08), "a field whose value has no meaning"),
        (with_byte(bytes(Packet("endpoint_response")), 13, 0x30), "a field whose value has no meaning"),
    ],
)
def test_bytes_are_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(Refused, match="bytes are no MRC packet") as caught:
        Packet.parse(data)
    assert caught.value.reason == reason
    assert isinstance(caught.value, RemoteError)


def test_padding_alone_is_no_payload() -> None:
    with pytest.raises(Refused, match="padding"):
        Packet.parse(with_byte(bytes(write(payload=b"1234")), 1, 0x30)[:32] + bytes(3))


def test_reserved_bits_are_not_looked_at() -> None:
    reserved = {
        "write_only": [(4, 0xFF), (8, 0x4F)],
        "sack": [(12, 0xFF), (13, 0x9D), (24, 0xFF), (28, 0xF0), (42, 0x80)],
        "nack": [(12, 0xFF), (13, 0xFF), (24, 0xFF), (28, 0xF0), (29, 0xFF)],
        "probe": [(12, 0xFF), (13, 0xFF), (14, 0xFF), (18, 0xFF), (19, 0xFF), (26, 0x7F), (27, 0xF0)],
        "endpoint_request": [(12, 0xFF), (13, 0xFC), (14, 0xFF), (20, 0xFF), (23, 0xFF), (26, 0x7F)],
        "endpoint_response": [(12, 0xFF), (13, 0xC3), (14, 0xFF), (39, 0xFF), (42, 0x7F)],
    }
    for opcode, places in reserved.items():
        given = {"payload": b"hello"} if opcode == "write_only" else {}
        packet = Packet(opcode, **given)
        data = bytearray(bytes(packet))
        for at, bits in places:
            data[at] |= bits
        assert Packet.parse(bytes(data)) == packet, opcode


def test_the_last_four_bytes_may_be_the_icrc() -> None:
    assert Packet.parse(GOOD + b"icrc", icrc=True) == write()
    with pytest.raises(Refused):
        Packet.parse(b"abc", icrc=True)


def test_what_a_switch_left_is_read_without_payload_or_immediate() -> None:
    whole = Packet("write_last_imm", psn=9, imm=3, payload=b"abcde", timestamp=77, dmalen=4096)
    left = Packet.parse(bytes(whole)[:36], trimmed=True)
    assert left.trimmed and left.imm is None and left.payload is None
    assert (left.psn, left.dmalen, left.timestamp, left.bth.pad) == (9, 4096, Timestamp(77), 3)
    assert bytes(left) == bytes(whole)[:36]


def test_nothing_but_a_write_is_trimmed() -> None:
    with pytest.raises(Refused, match="a control packet marked as trimmed"):
        Packet.parse(SACK, trimmed=True)


def test_the_names_are_those_of_the_core() -> None:
    known = core.names()
    for enum in (Opcode, NackReason, Mark, Syndrome, EndpointOp):
        assert {member.name: member.value for member in enum} == known[enum.__name__]


def test_values_without_a_name_are_kept() -> None:
    assert NackReason(0x55).name == "UNKNOWN_55"
    nack = Packet("nack", reason=0x55)
    assert Packet.parse(bytes(nack)).reason == 0x55
    with pytest.raises(ValueError, match="256"):
        NackReason(256)


def test_a_message_of_no_bytes_is_one_packet_without_payload() -> None:
    flipped = bytearray(bytes(Packet(Opcode.WRITE_ONLY, payload=b"1234", dmalen=0)))
    flipped[0] = int(Opcode.WRITE_ONLY_IMM)  # the payload is an immediate now
    empty = Packet.parse(bytes(flipped))
    assert (empty.payload_size, empty.imm) == (0, int.from_bytes(b"1234", "big"))
    assert Packet.parse(bytes(empty)) == empty
    built = Packet(Opcode.WRITE_ONLY, payload=b"")
    assert built.dmalen == 0 and Packet.parse(bytes(built)) == built
    for wrong in ({}, {"payload": b"", "dmalen": 4}):
        with pytest.raises(ConfigError, match="dmalen is 0"):
            Packet(Opcode.WRITE_ONLY, **wrong)
