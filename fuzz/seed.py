"""Writes the seeds of fuzz/parse.cpp: the golden packets, frames around them, and small captures.

Run it after a change of the golden packets; the seeds are committed, so that a fuzzing run needs no Python.
"""

from __future__ import annotations

import sys
from pathlib import Path as File

ROOT = File(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "vectors"))

from golden import load, names  # noqa: E402

from softmrc.wire import Frame, Outer, Packet, Path, PcapngWriter, trim  # noqa: E402

PACKET, FRAME, TRIM, CAPTURE, SRH, ELIDED = 0, 1, 2, 3, 4, 5
NO_LINK_HEADER = TRIMMED = 0x10
CORPUS = File(__file__).parent / "corpus" / "parse"


def seeds() -> dict[str, bytes]:
    """Every seed by its name: a byte that chooses the reader, then what it reads."""
    packets = {name: Packet.parse(load(name)) for name in names()}
    path = Path.through(0xFCBBBB00, range(1, 9))
    assert path.srh is not None
    found = {f"packet-{name}": bytes([PACKET]) + load(name) for name in packets}
    found["srh"] = bytes([SRH]) + bytes(path.srh)
    found["elided"] = bytes([ELIDED, 4, 0]) + load("write_only")[:32]
    write = packets["write_last_imm"]
    frames = {
        "v6": Frame.build(write, "fd00::1", "fd00::2", ev=0x0001C000),
        "v4": Frame.build(packets["sack"], "10.0.0.1", "10.0.0.2", ev=0xC000),
        "outer": Frame.build(write, "fd00::1", "fd00::2", outer=Outer("fd00::9", Path.through(0xFCBBBB00, [1, 2, 3]))),
        "srh": Frame.build(write, "10.0.0.1", "10.0.0.2", outer=Outer("fd00::9", path)),
    }
    for name, frame in frames.items():
        found[f"frame-{name}"] = bytes([FRAME]) + bytes(frame)
        found[f"trim-{name}"] = bytes([TRIM]) + bytes(frame)
    trimmed = trim(bytes(frames["outer"]))
    assert trimmed is not None
    found["frame-trimmed"] = bytes([FRAME]) + trimmed
    found["frame-no-link"] = bytes([FRAME | NO_LINK_HEADER]) + bytes(frames["v4"])[14:]
    capture = PcapngWriter()
    capture.add_interface("plane0", "a plane")
    capture.write(0, 1_000_000_007, bytes(frames["v4"]), comment="hello")
    found["capture-pcapng"] = bytes([CAPTURE]) + capture.contents
    old = bytes.fromhex("d4c3b2a1 02000400 00000000 00000000 ffff0000 65000000 01000000 02000000 04000000 04000000")
    found["capture-pcap"] = bytes([CAPTURE]) + old + b"data"
    return found


if __name__ == "__main__":
    CORPUS.mkdir(parents=True, exist_ok=True)
    for name, data in seeds().items():
        (CORPUS / name).write_bytes(data)
