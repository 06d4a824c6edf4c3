"""Captures of ours, taken by a device, at an interface, and on the way through a fabric."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import needs
from in_process import softmrc_here as softmrc
from softmrc import wire
from softmrc.cli.capture import is_udp
from softmrc.connection import connect, listen
from softmrc.fabric import AddressPlan, parse

FABRIC = parse("[fabric]\nplanes = 2\nhosts = 8\nhosts_per_leaf = 2\nspines = 4\n", "x")
PLAN = AddressPlan(FABRIC.fabric, FABRIC.addressing)
WRITE = wire.Packet("write_only", dqp=0x11, psn=5, va=0x1000, rkey=7, payload=b"hello")


def exchange(file: Path) -> int:
    """A few writes both ways, captured by the device that listens."""
    planes = ["127.0.0.1", "127.0.0.2"]
    with listen(memory=bytearray(1 << 16), planes=planes) as listener:
        capture = listener.device.capture(file)
        with connect("127.0.0.1", listener.port, planes=planes, memory=bytearray(64)) as connection:
            accepted = listener.accept(20)
            connection.write(connection.remote[0], 0, bytes(30_000), imm=1)
            accepted.write(accepted.remote[0], 0, b"back", imm=2)
            assert connection.recv(20).imm == 2
            accepted.close()
        return capture.stop()


def test_our_own_captures_are_read_in_both_directions(tmp_path: Path) -> None:
    count = exchange(tmp_path / "own.pcapng")
    done = softmrc("dissect", str(tmp_path / "own.pcapng"))
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == count > 10
    assert all("icrc ok" in line for line in lines), done.stdout
    assert all(float(line.split()[0]) >= 0 for line in lines) and min(float(line.split()[0]) for line in lines) == 0
    assert {"WRITE_LAST_IMM", "WRITE_ONLY_IMM"} <= set(" ".join(lines).split()), "what came, and what went"


# Real processes: one that captures and one that sends, in a separate network namespace.
@pytest.mark.process
@needs.in_namespaces
def test_an_interface_is_captured(tmp_path: Path) -> None:
    file = tmp_path / "lo.pcapng"
    command = ["unshare", "-n", "sh", "-c", f"ip link set lo up; {sys.executable} {tmp_path / 'both.py'}"]
    (tmp_path / "both.py").write_text(
        f"""
import re, subprocess, sys
command = [sys.executable, "-c", "from softmrc.cli import main; main()"]
with subprocess.Popen([*command, "capture", "lo", {str(file)!r}, "--limit", "20"], stdout=subprocess.PIPE) as taker:
    assert b"capturing" in taker.stdout.readline()
    from softmrc.connection import connect, listen
    with listen(memory=bytearray(64), gso=False) as listener:
        while taker.poll() is None:
            with connect("127.0.0.1", listener.port) as connection, listener.accept(20):
                connection.write(connection.remote[0], 0, b"x")
    print(taker.stdout.read().decode())
"""
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "20 packets" in done.stdout, done
    counted = softmrc("dissect", str(file), "--summary").stdout
    assert "20 in all" in counted and "icrc BAD" not in counted
    assert sum(int(line.split()[0]) for line in counted.splitlines() if "icrc ok" in line) >= 15, counted


def frames() -> list[tuple[bytes, bytes]]:
    """Of every path between two hosts: the frame as it arrives, and the carrier that it sets out with."""
    found = []
    for ev in range(PLAN.evs(0, 7)):
        plane, path = PLAN.place_of(ev)
        here, there = PLAN.nic_address(0, plane), PLAN.nic_address(7, plane)
        found.append((bytes(wire.Frame.build(WRITE, here, there, ev=5)), PLAN.carrier(0, 7, plane, path).packed))
    return found


def test_frames_on_their_way_are_read_as_they_will_arrive(tmp_path: Path) -> None:
    """At each switch another uSID is gone from the carrier; the ICRC is of the address that is left in the end."""
    seen = 0
    for raw, carrier in frames():
        for taken in range(6):
            address = carrier[:4] + carrier[4 + 2 * taken :] + bytes(2 * taken)
            with wire.PcapngWriter() as writer:
                writer.write(writer.add_interface("spine"), 0, raw[:38] + address + raw[54:])
            (record,) = wire.read_pcapng(writer.contents)
            frame = record.parse()
            assert frame.icrc == wire.Sum.GOOD and frame.route.destination.packed == raw[38:54]
            seen += 1
            if address == raw[38:54]:
                break
    assert seen > 2 * len(frames())


def test_what_is_broken_stays_broken() -> None:
    raw, _ = frames()[0]
    with wire.PcapngWriter() as writer:
        writer.write(writer.add_interface("spine"), 0, raw[:-1] + bytes([raw[-1] ^ 1]))
    (record,) = wire.read_pcapng(writer.contents)
    assert record.parse().icrc == wire.Sum.BAD


@given(st.binary(max_size=120))
def test_whatever_passes_is_looked_at(frame: bytes) -> None:
    assert is_udp(frame) in (True, False)


def test_an_interface_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = softmrc("capture", "nosuch0", str(tmp_path / "x.pcapng"))
    assert (
        done.returncode == 1
        and re.search(r"nosuch0|root|not permitted", done.stderr)
        and len(done.stderr.splitlines()) == 1
    )
