"""Captures of encrypted packets: what is in the clear is shown, and the rest with the keys."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from softmrc import _core, wire
from softmrc.cli import app
from softmrc.connection import connect, listen
from softmrc.errors import MrcError
from softmrc.wire.keylog import Keys

pytestmark = pytest.mark.skipif(not _core.can_seal(), reason="built without libcrypto")

LIMIT_S = 20.0
DATA = b"to be read with keys only" * 400


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A capture of an encrypted connection, and its key log."""
    file, keys = tmp_path / "sealed.pcapng", tmp_path / "keys.log"
    monkeypatch.setenv("SOFTMRC_KEYLOG", str(keys))
    both = {"secret": "known to two", "seal": "on", "mtu": 1024}
    with (
        listen(memory=bytearray(1 << 16), **both) as listener,
        listener.device.capture(file),
        connect("127.0.0.1", listener.port, **both) as mine,
        listener.accept(LIMIT_S) as theirs,
    ):
        mine.write(mine.remote[0], 0, DATA, imm=0xABCD)
        theirs.recv(LIMIT_S)
    monkeypatch.delenv("SOFTMRC_KEYLOG")
    return file, keys


def run(*words: str) -> str:
    found = CliRunner().invoke(app, ["dissect", *words])
    assert found.exit_code == 0, found.output
    return found.output


def rows(*words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("--json", *words).splitlines()]


def test_without_keys_headers_are_shown(capture: tuple[Path, Path]) -> None:  # spec: sealed-layout
    file, _ = capture
    found = rows(str(file))
    assert all(row["sealed"] and not row["sealed"]["opened"] for row in found)
    assert any(row["opcode"].startswith("WRITE") and row["body"]["va"] >= 0 for row in found)
    lines = run(str(file))
    assert "encrypted" in lines and "imm hidden" in lines and "icrc" not in lines
    assert "encrypted" in run("--summary", str(file))


def test_with_keys_everything_is(capture: tuple[Path, Path]) -> None:
    file, keys = capture
    assert keys.stat().st_mode & 0o077 == 0, "for this user only"
    found = rows("--keys", str(keys), str(file))
    assert found and all(row["sealed"]["opened"] for row in found)
    assert "imm 43981" in run("--keys", str(keys), str(file)) or "imm abcd" in run("--keys", str(keys), str(file))


def test_wrong_keys_open_nothing(capture: tuple[Path, Path], tmp_path: Path) -> None:
    file, keys = capture
    wrong = tmp_path / "wrong.log"
    wrong.write_text("".join(f"{line.rsplit(' ', 1)[0]} {'0' * 64}\n" for line in keys.read_text().splitlines()))
    assert not any(row["sealed"]["opened"] for row in rows("--keys", str(wrong), str(file)))


@pytest.mark.parametrize("text", ["AES 1 2\n", "\0\0", "AES_256_GCM 00abcd zz\n"])
def test_a_file_that_is_no_key_log_is_refused(capture: tuple[Path, Path], tmp_path: Path, text: str) -> None:
    bad = tmp_path / "bad.log"
    bad.write_text(text)
    found = CliRunner().invoke(app, ["dissect", "--keys", str(bad), str(capture[0])])
    assert found.exit_code != 0


def test_frames_that_are_sealed_are_trimmed_behind_the_tag_of_their_headers(capture: tuple[Path, Path]) -> None:
    for record in wire.read_pcapng(capture[0]):
        frame = record.parse()
        assert frame.sealed is not None and record.udp_payload[1] & 0x0F == 1
        if not frame.packet.opcode.name.startswith("WRITE"):
            continue
        ethernet = bytes(12) + (b"\x08\x00" if frame.route.is_v4 else b"\x86\xdd")
        marked = bytearray(ethernet + record.frame)
        marked[15] = 4 << 2  # may be trimmed
        marked[24:26] = bytes(2)
        total = sum(int.from_bytes(marked[at : at + 2], "big") for at in range(14, 34, 2))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        marked[24:26] = (~total & 0xFFFF).to_bytes(2, "big")
        left = wire.trim(bytes(marked), udp_port=frame.route.destination_port)
        clear = 36 if record.udp_payload[8] & 0x10 else 32
        assert left is not None and left[42:] == record.udp_payload[: clear + 20]
        again = wire.Frame.parse(left, udp_port=None)
        assert again.trimmed and again.sealed == frame.sealed


def test_times_that_jump_are_read_all_the_same(capture: tuple[Path, Path]) -> None:
    file, log = capture
    records = list(wire.read_pcapng(file))
    for times in ((0, (1 << 64) - 1), ((1 << 64) - 1, 0), (0, 1 << 63, 0, (1 << 63) // 1000)):
        keys = Keys.read(log)
        opened = 0
        for record, time_ns in zip(records, itertools.cycle(times), strict=False):
            moved = replace(record, time_ns=time_ns)
            opened += keys.packet(moved, moved.parse()) is not None
        assert opened > 0


def test_damaged_captures_are_read_or_refused(capture: tuple[Path, Path], tmp_path: Path) -> None:
    file, log = capture
    data, damaged, chance = file.read_bytes(), tmp_path / "damaged.pcapng", random.Random(1)
    for _ in range(300):
        bad = bytearray(data)
        for _ in range(chance.choice((1, 2, 8, 64))):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        damaged.write_bytes(bad)
        found = CliRunner().invoke(app, ["dissect", "--keys", str(log), str(damaged)])
        assert found.exception is None or isinstance(found.exception, SystemExit | MrcError), found.exception
