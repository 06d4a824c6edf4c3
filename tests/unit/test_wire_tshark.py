"""Our captures through tshark: an independent reader."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path as File

import needs
from softmrc.wire import Frame, Outer, Packet, Path, PcapngWriter, read_pcapng, seal

TSHARK = shutil.which("tshark")
pytestmark = needs.tools("tshark")

BLOCK = 0xFCBBBB00
WRITE = Packet(
    "write_last", dqp=0x123456, psn=0xABCDEF, ack_request=True, solicited=True, va=0x1000, rkey=7, payload=b"hello"
)
SACK = Packet("sack", dqp=0x21, cack_psn=1234)


def read(file: File, *fields: str) -> list[list[str]]:
    assert TSHARK is not None
    wanted = [argument for name in fields for argument in ("-e", name)]
    checks = ["-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]
    done = subprocess.run(
        [TSHARK, "-r", str(file), "-T", "fields", *wanted, *checks],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def capture(file: File, *frames: Frame) -> File:
    with PcapngWriter(file) as out:
        planes = [out.add_interface(f"plane{p}") for p in range(len(frames))]
        for plane, frame in zip(planes, frames, strict=True):
            out.write(plane, 1_700_000_000_000_000_000 + plane, bytes(frame), comment=f"number {plane}")
    return file


def test_bth_is_read_as_it_was_written(tmp_path: File) -> None:
    families = [("fd00::1", "fd00::2"), ("10.0.0.1", "10.0.0.2")]
    frames = [Frame.build(p, *addresses, ev=0x0001C0DE) for p in (WRITE, SACK) for addresses in families]
    names = ("opcode", "se", "padcnt", "tver", "p_key", "destqp", "a", "psn")
    rows = read(capture(tmp_path / "bth.pcapng", *frames), *(f"infiniband.bth.{n}" for n in names))
    write = ["200", "1", "3", "0", "65535", "0x123456", "1", str(0xABCDEF)]
    sack = ["220", "0", "0", "0", "65535", "0x000021", "0", "1234"]
    assert rows == [write, write, sack, sack]


def test_ip_and_udp_are_read_as_they_were_written(tmp_path: File) -> None:
    v6 = Frame.build(WRITE, "fd00::1", "fd00::2", ev=0x0001C0DE, ecn=3)
    v4 = Frame.build(WRITE, "10.0.0.1", "10.0.0.2", ev=0x0001C0DE)
    file = capture(tmp_path / "ip.pcapng", v6, v4)
    of_udp = ("udp.srcport", "udp.dstport", "udp.length", "udp.checksum.status")
    wanted = ("ipv6.flow", "ipv6.tclass.dscp", "ipv6.tclass.ecn", "ip.dsfield.dscp", "ip.checksum.status")
    size = str(8 + 32 + 8 + 4)
    six, four = read(file, *of_udp, *wanted)
    assert six == ["49374", "4791", size, "1", "0x000001", "4", "3", "", ""]
    assert four == ["49374", "4791", size, "1", "", "", "", "4", "1"]


def test_the_path_is_read_as_it_was_written(tmp_path: File) -> None:
    short = Frame.build(WRITE, "fd00::1", "fd00::2", outer=Outer("fd00::9", Path.through(BLOCK, [0x100, 0x200, 0x101])))
    long = Frame.build(WRITE, "fd00::1", "fd00::2", outer=Outer("fd00::9", Path.through(BLOCK, range(1, 9))))
    file = capture(tmp_path / "path.pcapng", short, long)
    wanted = ("ipv6.dst", "ipv6.nxt", "ipv6.routing.type", "ipv6.routing.segleft", "ipv6.routing.srh.last_entry",
              "ipv6.routing.srh.addr", "infiniband.bth.psn")  # fmt: skip
    rows = read(file, *wanted)
    assert rows[0] == ["fcbb:bb00:100:200:101::,fd00::2", "41,17", "", "", "", "", str(0xABCDEF)]
    assert rows[1] == ["fcbb:bb00:1:2:3:4:5:6,fd00::2", "43,17", "4", "1", "0", "fcbb:bb00:7:8::", str(0xABCDEF)]


def test_the_icrc_is_where_tshark_looks_for_it(tmp_path: File) -> None:
    """tshark stops at an opcode it does not know, so the packet is given that of a plain RC acknowledgement."""
    frame = Frame.build(Packet("acknowledge", dqp=0x21, psn=5, msn=3), "fd00::1", "fd00::2")
    rc_acknowledge = b"\x11" + bytes(frame.packet)[1:]
    sealed = seal(frame.route, rc_acknowledge)
    file = tmp_path / "icrc.pcapng"
    with PcapngWriter(file) as out:
        out.add_interface("plane0")
        out.write(0, 0, bytes(frame)[: -len(sealed)] + sealed)
    ((syndrome, msn, icrc),) = read(file, "infiniband.aeth.syndrome", "infiniband.aeth.msn", "infiniband.invariant.crc")
    assert (int(syndrome, 0), int(msn, 0)) == (0x1F, 3)
    assert int(icrc, 16) == int.from_bytes(sealed[-4:], "big")


def test_planes_times_and_comments_are_read(tmp_path: File) -> None:
    file = capture(tmp_path / "meta.pcapng", *[Frame.build(SACK, "fd00::1", "fd00::2")] * 2)
    rows = read(file, "frame.interface_name", "frame.time_epoch", "frame.comment")
    assert rows == [
        ["plane0", "1700000000.000000000", "number 0"],
        ["plane1", "1700000000.000000001", "number 1"],
    ]


def test_our_reader_reads_what_wireshark_writes(tmp_path: File) -> None:
    """A capture that went through tshark, into the older format and into pcapng, means the same."""
    assert TSHARK is not None
    frame = Frame.build(WRITE, "fd00::1", "fd00::2")
    ours = capture(tmp_path / "ours.pcapng", frame)
    for kind in ("pcapng", "pcap", "nsecpcap"):
        theirs = tmp_path / f"theirs.{kind}"
        subprocess.run([TSHARK, "-r", str(ours), "-F", kind, "-w", str(theirs)], check=True, capture_output=True)
        (record,) = read_pcapng(theirs)
        assert Frame.parse(record.frame) == frame
        assert record.time_ns == 1_700_000_000_000_000_000
