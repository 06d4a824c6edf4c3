"""The Lua dissector in tshark: every field of every header, against our own reader."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path as File

import pytest

import needs
from softmrc import wire
from softmrc.wire import Frame, Opcode, Outer, Packet, Path, PcapngWriter
from softmrc.wire import headers as h
from softmrc.wire.wireshark import dissector, install_wireshark

TSHARK = shutil.which("tshark")
pytestmark = needs.tools("tshark")
BLOCK = 0xFCBBBB00
BODIES = (h.Write, h.Ack, h.Sack, h.Nack, h.Probe, h.EndpointRequest, h.EndpointResponse)
OWN = {"payload", "trimmed", "timestamp", "cc"}  # told under other names


def names_of(kind: type) -> list[str]:
    return [f"{kind.__name__.lower()}.{f.name}" for f in fields(kind) if f.name not in OWN]


BTH = [f.name for f in fields(h.Bth)]
TIMESTAMP = [f"timestamp.{f.name}" for f in fields(h.Timestamp)]
CC = [f"sack.cc.{f.name}" for f in fields(h.CcState)]
ALL = ["ev", "trimmed", "icrc", *BTH, *TIMESTAMP, *CC, *(name for kind in BODIES for name in names_of(kind))]


def read(tmp: File, capture: File, wanted: list[str], *more: str) -> list[dict[str, str]]:
    """One dictionary a packet, by tshark with the dissector and nothing of the user's own."""
    assert TSHARK is not None
    script = tmp / "mrc.lua"
    script.write_text(dissector())
    command = [TSHARK, "-r", str(capture), "-X", f"lua_script:{script}", "-T", "fields", "-E", "separator=;", *more]
    for name in wanted:
        command += ["-e", name]
    environment = {"HOME": str(tmp), "PATH": "/usr/bin:/bin:/usr/sbin"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Lua: Error" not in done.stderr and "Lua Error" not in done.stdout, done.stderr
    return [dict(zip(wanted, line.split(";"), strict=True)) for line in done.stdout.splitlines()]


def draw(rng: random.Random, opcode: Opcode) -> Packet:
    """A packet with a value in every field that it may have one in."""

    def bits(count: int) -> int:
        return rng.getrandbits(count)

    stamp = h.Timestamp(bits(16), bool(bits(1)), bits(4))
    bth = {
        "dqp": bits(24), "p_key": bits(16), "solicited": bool(bits(1)), "migration": bool(bits(1)),
        "ack_request": bool(bits(1)), "retransmission": bool(bits(1)),
    }  # fmt: skip
    if opcode.is_write:
        more = {"imm": bits(32)} if opcode.has_imm else {}
        return Packet(
            opcode, **bth, psn=bits(24), rqmsn=bits(16), msn=bits(16), va=bits(64), rkey=bits(32), dmalen=bits(32) | 1,
            payload=rng.randbytes(rng.randrange(1, 90)), timestamp=stamp if bits(1) else None, **more,
        )  # fmt: skip
    if opcode is Opcode.ACKNOWLEDGE:
        return Packet(opcode, **bth, psn=bits(24), syndrome=rng.choice([0x1F, 0x61, 0x63, 0x70]), msn=bits(16))
    pdc = {"spdcid": bits(16), "dpdcid": bits(16)}
    if opcode is Opcode.SACK:
        cc = h.CcState(bits(16), bits(15), bool(bits(1)), bits(7), bits(24))
        return Packet(
            opcode, **bth, **pdc, mark=rng.randrange(3), answers_probe=bool(bits(1)), entropy=bits(32), mpr=bits(8),
            ack_psn_offset=bits(16) - 32768, cack_psn=bits(24), cc_flags=bits(4), sack_offset=bits(16) - 32768,
            bitmap=bits(64), cc=cc,
        )  # fmt: skip
    if opcode is Opcode.NACK:
        reason = rng.choice([1, 2, 6, 0x19, 0x40])
        some = {"vendor": bits(8), "entropy": bits(32), "nack_psn": bits(24), "cc_flags": bits(4)}
        return Packet(opcode, **bth, **pdc, **some, reason=reason, tx_timestamp=bits(16))
    if opcode is Opcode.PROBE:
        return Packet(opcode, **bth, **pdc, psn=bits(24), vendor=bits(8), probe_id=bits(16), timestamp=stamp)
    bth["dqp"] = 2
    key = rng.choice([0, bits(64) | 1])
    more = {"vendor": bits(8), "port_status_mask": bits(32)} if opcode is Opcode.ENDPOINT_REQUEST else {}
    return Packet(opcode, **bth, psn=bits(16), op=bits(1), key=key, timestamp=stamp, **more)


def frames_of(packet: Packet, rng: random.Random) -> list[bytes]:
    """The packet in all that may carry it: IPv4, IPv6, IPv6 in IPv6, with an SRH; and trimmed, if it can be."""
    v6 = ("fd00::1", "fd00::2")
    short, long = Path.through(BLOCK, [0x100, 0x301, 0x101]), Path.through(BLOCK, range(1, 9))
    ev = rng.getrandbits(32)
    found = [
        bytes(Frame.build(packet, "10.0.0.1", "10.0.0.2", ev=ev)),
        bytes(Frame.build(packet, *v6, ev=ev)),
        bytes(Frame.build(packet, *v6, ev=ev, outer=Outer("fd00::9", short))),
        bytes(Frame.build(packet, *v6, ev=ev, outer=Outer("fd00::9", long))),
    ]
    if packet.opcode.is_write:
        cut = [wire.trim(frame) for frame in found[1:]]
        assert all(frame is not None for frame in cut)
        found += [frame for frame in cut if frame is not None]
    return found


def captured(tmp: File, frames: list[bytes]) -> File:
    with PcapngWriter(tmp / "some.pcapng") as out:
        out.add_interface("plane0")
        for i, frame in enumerate(frames):
            out.write(0, i, frame)
    return tmp / "some.pcapng"


def told(name: str, value: object) -> object:
    """What tshark prints, as a number; nothing for what is not there."""
    assert isinstance(value, str)
    if value == "":
        return None
    if value in ("True", "False"):
        return int(value == "True")
    return int(value, 0)


def expected(frame: Frame, whole: bytes) -> dict[str, int | None]:
    packet, body = frame.packet, frame.packet.body
    found: dict[str, int | None] = {name: int(getattr(packet.bth, name)) for name in BTH}
    found["ev"] = frame.ev
    found["trimmed"] = int(frame.trimmed) if packet.opcode.is_write else None
    found["icrc"] = None if frame.trimmed else int.from_bytes(whole[-4:], "little")
    kind = type(body).__name__.lower()
    for f in fields(body):
        if f.name in OWN:
            continue
        value = getattr(body, f.name)
        if (f.name == "key" and value == 0) or (frame.trimmed and f.name == "payload_size"):
            value = None
        found[f"{kind}.{f.name}"] = None if value is None else int(value)
    stamp = getattr(body, "timestamp", None)
    if stamp is not None:
        found |= {f"timestamp.{f.name}": int(getattr(stamp, f.name)) for f in fields(h.Timestamp)}
    if isinstance(body, h.Sack):
        found |= {f"sack.cc.{f.name}": int(getattr(body.cc, f.name)) for f in fields(h.CcState)}
    return {name: found.get(name) for name in ALL}


@pytest.mark.parametrize("seed", range(2))
def test_every_field_of_every_header_is_what_we_read(tmp_path: File, seed: int) -> None:
    rng = random.Random(seed)
    frames = [frame for opcode in Opcode for _ in range(3) for frame in frames_of(draw(rng, opcode), rng)]
    rows = read(tmp_path, captured(tmp_path, frames), [f"mrc.{name}" for name in ALL])
    assert len(rows) == len(frames)
    for number, (row, frame) in enumerate(zip(rows, frames, strict=True)):
        ours = expected(Frame.parse(frame), frame)
        theirs = {name: told(name, row[f"mrc.{name}"]) for name in ALL}
        assert theirs == ours, f"packet {number}: {Frame.parse(frame).packet}"


def example(tmp: File, port: int = 4791) -> File:
    """A message that is trimmed, retransmitted and acknowledged."""
    write = Packet("write_only", dqp=0x22, psn=7, msn=1, va=0x1000, rkey=3, payload=bytes(64))
    nack = Packet("nack", dqp=0x11, nack_psn=7, reason="trimmed", entropy=0xC001)
    sack = Packet("sack", dqp=0x11, cack_psn=7, mark="skip_once", entropy=0xC002)
    to = {"udp_port": port}
    frames = [
        Frame.build(write, "fd00::1", "fd00::2", ev=0xC001, **to),
        Frame.build(nack, "fd00::2", "fd00::1", ev=0xC005, **to),
        Frame.build(write.replace(retransmission=True), "fd00::1", "fd00::2", ev=0xC002, **to),
        Frame.build(sack, "fd00::2", "fd00::1", ev=0xC006, **to),
    ]
    raw = [bytes(frame) for frame in frames]
    cut = wire.trim(raw[0], udp_port=port)
    assert cut is not None
    return captured(tmp, [cut, *raw[1:]])


@pytest.mark.parametrize(
    "filter_, numbers",
    [
        ("mrc.dqp == 0x22", ["1", "3"]),
        ("mrc.psn == 7 && mrc.retransmission == 1", ["3"]),
        ("mrc.ev == 0xc002", ["3"]),
        ("mrc.nack.entropy == 0xc001", ["2"]),
        ("mrc.expert.retransmission", ["3"]),
        ("mrc.expert.nack", ["2"]),
        ("mrc.expert.trimmed", ["1"]),
        ("mrc.expert.mark", ["4"]),
        ("mrc.trimmed == 1", ["1"]),
    ],
)
def test_filters_and_expert_info_find_their_packets(tmp_path: File, filter_: str, numbers: list[str]) -> None:
    rows = read(tmp_path, example(tmp_path), ["frame.number"], "-Y", filter_)
    assert [row["frame.number"] for row in rows] == numbers


def test_other_ports_are_recognised_and_roce_is_left_alone(tmp_path: File) -> None:
    rows = read(tmp_path, example(tmp_path, 40000), ["frame.number"], "-Y", "mrc")
    assert [row["frame.number"] for row in rows] == ["1", "2", "3", "4"]
    roce = bytearray(bytes(Frame.build(Packet("acknowledge", dqp=5, psn=9), "fd00::1", "fd00::2")))
    roce[14 + 40 + 8] = 0x11  # a plain RC acknowledgement
    noise = bytes(Frame.build(Packet("acknowledge", dqp=5, psn=9), "fd00::1", "fd00::2"))[:62] + b"\xd1\x00no"
    rows = read(
        tmp_path, captured(tmp_path, [bytes(roce), noise]), ["frame.number", "infiniband.bth.opcode", "mrc.opcode"]
    )
    assert rows[0] == {"frame.number": "1", "infiniband.bth.opcode": "17", "mrc.opcode": ""}
    assert len(rows) == 2


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_packet_cut_short_is_reported_not_crashed(tmp_path: File, is_sealed: bool) -> None:
    rng = random.Random(3)
    frames = []
    for opcode in Opcode:
        frame = bytes(Frame.build(draw(rng, opcode), "fd00::1", "fd00::2"))
        if is_sealed:
            frame = sealed(frame, rng.randbytes(12), rng)
        frames += [frame[:keep] for keep in range(62, len(frame), 5)]
    rows = read(tmp_path, captured(tmp_path, frames), ["frame.number", "_ws.lua.error"])
    assert rows and all(row["_ws.lua.error"] == "" for row in rows)


SEAL = ["qpn", "epoch", "number"]


def sealed(frame: bytes, key: bytes, rng: random.Random) -> bytes:
    """The frame as if a cipher had closed it, with random bytes for all that is hidden or a tag; IPv6 without more."""
    packet = bytearray(frame[62:-4])
    packet[1] |= 1
    cut = 32 + 4 * (packet[8] >> 4 & 1)
    if Opcode(packet[0]).is_write:
        packet = packet[:cut] + key + rng.randbytes(8) + rng.randbytes(len(packet) - cut) + rng.randbytes(16)
    else:
        packet += key + rng.randbytes(16)
    size = (len(packet) + 8).to_bytes(2, "big")
    return frame[:18] + size + frame[20:58] + size + frame[60:62] + bytes(packet)


def test_sealed_packets_say_so_and_show_their_headers(tmp_path: File) -> None:  # spec: sealed-layout
    """As our own reader shows them, whole and trimmed, on any port; and what is hidden is shown as nothing else."""
    rng = random.Random(4)
    frames = []
    for opcode in Opcode:
        for _ in range(3):
            key = rng.randbytes(12)
            plain = bytes(Frame.build(draw(rng, opcode), "fd00::1", "fd00::2", ev=rng.getrandbits(32), udp_port=4793))
            frames.append(sealed(plain, key, rng))
            if opcode.is_write and (cut := wire.trim(frames[-1], udp_port=4793)) is not None:
                frames.append(cut)
    of_headers = [name for name in ALL if name not in ("icrc", "version", "write.imm", "write.payload_size")]
    of_seals = ("sealed", "version", "icrc", "write.imm", "payload", "seal.hidden", "seal.tag")
    wanted = [f"mrc.{name}" for name in (*of_seals, *of_headers)]
    rows = read(tmp_path, captured(tmp_path, frames), [*wanted, *(f"mrc.seal.{name}" for name in SEAL), "_ws.col.Info"])
    assert len(rows) == len(frames) and any(Frame.parse(frame, udp_port=4793).trimmed for frame in frames)
    for row, frame in zip(rows, frames, strict=True):
        ours = Frame.parse(frame, udp_port=4793)
        assert ours.sealed is not None and "encrypted" in row["_ws.col.Info"]
        assert told("sealed", row["mrc.sealed"]) == told("version", row["mrc.version"]) == 1
        assert {name: told(name, row[f"mrc.seal.{name}"]) for name in SEAL} == ours.sealed._asdict()
        assert not any(row[f"mrc.{name}"] for name in ("icrc", "write.imm", "payload"))
        assert bool(row["mrc.seal.tag"]) is not ours.trimmed
        theirs = {name: told(name, row[f"mrc.{name}"]) for name in of_headers}
        assert theirs == {name: value for name, value in expected(ours, frame).items() if name in of_headers}


def test_it_is_installed_where_tshark_looks(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    target = install_wireshark()
    assert target.is_relative_to(tmp_path) and target.read_text() == dissector()
    assert TSHARK is not None
    capture = example(tmp_path)
    done = subprocess.run(
        [TSHARK, "-r", str(capture), "-Y", "mrc", "-T", "fields", "-e", "mrc.psn"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.split() == ["7"] * 4, done.stderr
