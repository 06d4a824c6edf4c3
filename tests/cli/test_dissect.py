"""`softmrc dissect` as a person meets it: its output, its exit code."""

from __future__ import annotations

import json
from pathlib import Path as File

import pytest

from in_process import softmrc_here as softmrc
from softmrc import wire
from softmrc.device import Device
from softmrc.wire import CcState, Frame, Outer, Packet, Path, PcapngWriter
from udp.loopback import connect, drain

START = 1_700_000_000_000_000_000


def frame_of(packet: Packet, **others: object) -> Frame:
    path = Path.through(0xFCBBBB00, [0x100, 0x203, 0x101, 0x1002, 0xD006])
    return Frame.build(packet, "fd00::1", "fd00::2", ev=0x0003C003, outer=Outer("fd00::9", path), **others)


WRITE = Packet("write_only", dqp=0x22, psn=7, va=0x7F00, rkey=0x2A, payload=b"hello", ack_request=True)


@pytest.fixture
def capture(tmp_path: File) -> str:
    file = tmp_path / "capture.pcapng"
    trimmed = wire.trim(bytes(frame_of(WRITE)))
    assert trimmed is not None
    sack = Packet("sack", dqp=0x11, cack_psn=7, mark="skip_once", entropy=0x3C003, cc=CcState(rcvd_bytes=8))
    broken = bytearray(bytes(Frame.build(sack, "10.0.0.2", "10.0.0.1", ev=0xC001)))
    broken[-1] ^= 1
    with PcapngWriter(file) as out:
        planes = [out.add_interface(f"plane{p}") for p in range(2)]
        out.write(planes[0], START, bytes(frame_of(WRITE, ecn=3)))
        out.write(planes[0], START + 1_500, trimmed, comment="no room at 203")
        out.write(planes[1], START + 2_000_000_001, bytes(broken))
        out.write(planes[1], START - 1, bytes(60))
    return str(file)


def test_one_line_a_packet(capture: str) -> None:
    done = softmrc("dissect", capture)
    assert (done.returncode, done.stderr) == (0, "")
    whole, trimmed, broken, other = done.stdout.splitlines()
    assert " ".join(whole.split()) == (
        "0.000000001 plane0 fd00::1 > fd00::2 ev 0003c003 via fcbb:bb00/100>203>101>1002>d006 ce icrc ok "
        "WRITE_ONLY qp 000022 psn 7 msn 0 va 7f00 rkey 2a len 5/5 ackreq"
    )
    assert "0.000001501 plane0" in trimmed and "icrc absent" in trimmed
    assert trimmed.endswith("len -/5 trimmed ackreq  # no room at 203")
    assert "2.000000002 plane1 10.0.0.2 > 10.0.0.1" in broken and "icrc BAD" in broken and "SKIP_ONCE" in broken
    assert other.split(maxsplit=2) == ["0.000000000", "plane1", "not MRC: neither IPv4 nor IPv6"]
    assert whole.index("WRITE_ONLY") == trimmed.index("WRITE_ONLY")


def test_json_is_one_object_a_line(capture: str) -> None:
    done = softmrc("dissect", "--json", capture)
    assert done.returncode == 0
    whole, trimmed, broken, other = (json.loads(line) for line in done.stdout.splitlines())
    assert whole["time_ns"] == START
    assert (whole["ev"], whole["path"], whole["ecn"]) == (0x3C003, [0x100, 0x203, 0x101, 0x1002, 0xD006], "congestion")
    assert (whole["opcode"], whole["bth"]["psn"], whole["body"]["va"]) == ("WRITE_ONLY", 7, 0x7F00)
    assert (trimmed["trimmed"], trimmed["icrc"], trimmed["comment"]) == (True, "absent", "no room at 203")
    assert (broken["icrc"], broken["body"]["mark"], broken["path"]) == ("bad", "SKIP_ONCE", None)
    assert broken["body"]["cc"]["rcvd_bytes"] == 8
    assert other["refused"] == "neither IPv4 nor IPv6"


def test_count_counts(capture: str) -> None:
    done = softmrc("dissect", "--summary", capture)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["1", "plane0", "WRITE_ONLY", "icrc", "ok"],
        ["1", "plane0", "WRITE_ONLY", "trimmed", "icrc", "absent"],
        ["1", "plane1", "SACK", "icrc", "BAD"],
        ["1", "plane1", "not", "MRC"],
        ["4", "in", "all"],
    ]
    rows = [json.loads(line) for line in softmrc("dissect", "--summary", "--json", capture).stdout.splitlines()]
    assert rows[0] == {"interface": "plane0", "opcode": "WRITE_ONLY", "icrc": "ok", "packets": 1}


def test_limit_stops_early(capture: str) -> None:
    assert len(softmrc("dissect", "-n", "2", capture).stdout.splitlines()) == 2


def test_other_ports(tmp_path: File) -> None:
    file = str(tmp_path / "ports.pcapng")
    ports = (4791, 4971, 50_000)
    with PcapngWriter(file) as out:
        out.add_interface("plane0")
        for port in ports:
            whole = bytes(Frame.build(WRITE, "fd00::1", "fd00::2", udp_port=port))
            out.write(0, 0, whole)
            out.write(0, 0, whole[:-1] + bytes([whole[-1] ^ 1]))

    def shown(*options: str) -> list[str]:
        lines = softmrc("dissect", *options, file).stdout.splitlines()
        return ["ok" if "icrc ok" in line else "BAD" if "icrc BAD" in line else line.split("not ")[1] for line in lines]

    other = "MRC: another UDP port"
    assert shown() == ["ok", "BAD", "ok", other, "ok", other]  # a right ICRC says more than a port
    assert shown("--port", "4971") == [other, other, "ok", "BAD", other, other]
    assert shown("--port", "50000", "--port", "4791") == ["ok", "BAD", other, other, "ok", "BAD"]


@pytest.mark.parametrize("icrc", [True, False], ids=["icrc", "no icrc"])
def test_a_devices_own_capture(tmp_path: File, icrc: bool) -> None:
    """Its ports are any free ones, one for each direction and lane; where there is no ICRC, nothing else tells MRC."""
    file = str(tmp_path / "device.pcapng")
    with Device(lanes=2, icrc=icrc) as a, Device(lanes=2, icrc=icrc) as b, a.capture(file) as capture:
        target, source = b.register(bytearray(64), remote_write=True), a.register(bytearray(64))
        for _ in range(2):
            qp, _ = connect(a, b)
            qp.post_write(source, 0, 64, remote_va=0, rkey=target.rkey)
            assert [c.ok for c in drain(qp.send_cq, 1)] == [True]
        capture.stop()
    records = list(wire.read_pcapng(file))
    ports = {record.parse().route.destination_port for record in records}
    assert len(records) == capture.packets and len(ports) == 4 and wire.UDP_PORT not in ports
    lines = softmrc("dissect", file).stdout.splitlines()
    assert len(lines) == len(records) and not any("not MRC" in line for line in lines)
    assert sum("WRITE_ONLY" in line for line in lines) >= 2 and any("ACK" in line for line in lines)
    with pytest.raises(wire.Refused, match="another UDP port"):
        records[0].parse([wire.UDP_PORT])


def test_a_frame_on_whatever_port() -> None:
    frame = Frame.build(WRITE, "fd00::1", "fd00::2", udp_port=50_000)
    assert Frame.parse(bytes(frame), udp_port=None) == frame
    with pytest.raises(wire.Refused, match="another UDP port"):
        Frame.parse(bytes(frame))


@pytest.mark.parametrize(("linktype", "before"), [(101, 0), (113, 16), (276, 20)], ids=["raw", "sll", "sll2"])
def test_captures_without_ethernet(tmp_path: File, linktype: int, before: int) -> None:
    file = tmp_path / "raw.pcapng"
    with PcapngWriter(file) as out:
        out.add_interface("any", linktype=linktype)
        out.write(0, 0, bytes(before) + bytes(frame_of(WRITE))[14:])
    assert "via fcbb:bb00/" in softmrc("dissect", str(file)).stdout


def test_what_cannot_be_read_is_one_line_on_stderr(tmp_path: File) -> None:
    missing = softmrc("dissect", str(tmp_path / "missing.pcapng"))
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == f"softmrc: `{tmp_path}/missing.pcapng`: no such file or directory\n"
    text = tmp_path / "notes.txt"
    text.write_text("these are notes")
    wrong = softmrc("dissect", str(text))
    assert wrong.returncode == 1
    assert wrong.stderr.startswith(f"softmrc: {text}: not a capture") and wrong.stderr.count("\n") == 1
    assert softmrc("dissect", str(tmp_path)).returncode == 1


def test_a_truncated_capture_shows_what_it_has_and_fails(capture: str, tmp_path: File) -> None:
    cut = tmp_path / "cut.pcapng"
    cut.write_bytes(File(capture).read_bytes()[:-5])
    done = softmrc("dissect", str(cut))
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 3
    assert "truncated: a block ends early at byte" in done.stderr


def test_a_snapped_frame_says_so(tmp_path: File) -> None:
    file = tmp_path / "snap.pcapng"
    data = bytes(frame_of(WRITE))
    with PcapngWriter(file) as out:
        out.add_interface("plane0")
        out.write(0, 0, data[:60], original_size=len(data))
    assert f"(the capture kept 60 of {len(data)} bytes)" in softmrc("dissect", str(file)).stdout


def test_usage_errors_exit_with_two() -> None:
    assert softmrc("dissect").returncode == 2
    assert softmrc("dissect", "--nonsense", "x").returncode == 2
