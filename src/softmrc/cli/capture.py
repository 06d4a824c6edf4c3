"""`softmrc capture INTERFACE FILE`: what passes an interface, as pcapng that `softmrc dissect` and Wireshark read."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from softmrc import wire
from softmrc._support.files import cannot_write, open_own
from softmrc.cli.options import seconds_of
from softmrc.errors import DeviceError

ETH_P_ALL = 3
PACKET_OUTGOING = 4
PACKET_STATISTICS = 6
SO_TIMESTAMPNS = 35
BUFFER_BYTES = 64 << 20
LOOPBACK = 772  # how the kernel calls the hardware of lo
LONGEST_FRAME = 1 << 18
IP_VERSIONS = {0x0800: 4, 0x86DD: 6}
UDP = 17
ROUTING = 43


def is_udp(frame: bytes) -> bool:
    """Whether it may be MRC: UDP over IP, directly or inside another IPv6 header."""
    kind, at = int.from_bytes(frame[12:14], "big"), 14
    if IP_VERSIONS.get(kind) == 4:
        return len(frame) > at + 9 and frame[at + 9] == UDP
    if IP_VERSIONS.get(kind) != 6 or len(frame) < at + 40:
        return False
    following, at = frame[at + 6], at + 40
    if following == ROUTING and len(frame) > at + 2:
        following, at = frame[at], at + 8 * (1 + frame[at + 1])
    if following == 41:
        return len(frame) > at + 6 and frame[at + 6] == UDP
    return following == UDP or (following == 4 and len(frame) > at + 9 and frame[at + 9] == UDP)


def opened(interface: str) -> socket.socket:
    """A socket that sees what passes there."""
    if os.geteuid() != 0:
        raise DeviceError("to capture at an interface needs root: run this with sudo, or use Device.capture")
    try:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    except OSError as error:
        raise DeviceError(f"cannot capture here: {error.strerror}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        sock.bind((interface, 0))
    except OSError as error:
        sock.close()
        names = ", ".join(sorted(name for _, name in socket.if_nameindex()))
        raise DeviceError(f"cannot capture at {interface!r}: {error.strerror}; there is {names}") from None
    return sock


def next_frame(sock: socket.socket) -> tuple[int, bytes] | None:
    """When it passed, and what; None: nothing in time, or what is seen a second time on its way out of loopback."""
    try:
        frame, notes, _, (_, _, direction, hardware, _) = sock.recvmsg(LONGEST_FRAME, 64)
    except TimeoutError:
        return None
    if hardware == LOOPBACK and direction == PACKET_OUTGOING:
        return None
    for level, kind, data in notes:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS) and len(data) >= 16:
            seconds, ns = struct.unpack("ll", data[:16])
            return seconds * 10**9 + ns, frame
    return time.time_ns(), frame


def _made(file: Path) -> BinaryIO:
    """Root writes what others are not to read, wherever they may have put something."""
    try:
        return open(open_own(os.fspath(file), is_anew=True, is_pipe_fine=True), "wb")
    except (OSError, ValueError) as error:
        raise cannot_write(file, error) from None


def capture(
    interface: Annotated[str, typer.Argument(help="For example eth0.", show_default=False)],
    file: Annotated[Path, typer.Argument(help="The pcapng file to write.", show_default=False)],
    duration: Annotated[str, typer.Option(help="Stop after this time. Default: on Ctrl-C.", show_default=False)] = "0",
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Stop after N packets. Default: no limit.")] = 0,
) -> None:
    """Capture the UDP packets of an interface (needs root).

    Both directions are captured. With GSO, a sender's packets appear as one long packet per batch: disable segmentation
    there, or set gso = false. `softmrc ctl capture` writes the packets of one device, one by one."""
    seconds = seconds_of("--duration", duration)
    count, sock = 0, opened(interface)
    target = _made(file)
    until = time.monotonic() + seconds if seconds else float("inf")
    sock.settimeout(0.1)
    print(f"capturing at {interface} into {file}; Ctrl-C ends it", flush=True)
    with sock:
        try:
            with target, wire.PcapngWriter(target) as writer:
                number = writer.add_interface(interface)
                while time.monotonic() < until and (not limit or count < limit):
                    found = next_frame(sock)
                    if found is not None and is_udp(found[1]):
                        writer.write(number, *found)
                        count += 1
        except KeyboardInterrupt:
            pass
        except OSError as error:
            raise DeviceError(f"the capture into {str(file)!r} ends early: {error.strerror}") from None
        _, missed = struct.unpack("II", sock.getsockopt(263, PACKET_STATISTICS, 8))
    print(f"{count:,} packets" + (f", {missed:,} more than could be written" if missed else ""))
