"""Capture files: pcapng written, pcapng and pcap read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path as FilePath
from types import TracebackType
from typing import BinaryIO, Self

from softmrc._core import wire as _native
from softmrc.errors import ConfigError, DeviceError, MrcError, UsageError, words_of
from softmrc.wire.fields import as_integer
from softmrc.wire.frame import Frame
from softmrc.wire.names import Sum
from softmrc.wire.packet import Refused
from softmrc.wire.route import UDP_PORT

LINKTYPE_ETHERNET = 1
LINKTYPE_RAW = 101
MAX_USIDS = 6  # behind a block of 32 bits
_FLUSH_AT = 1 << 20
# How many bytes stand before the IP header, for the link types that tcpdump and we write. None: Ethernet, which the
# frame reader knows.
_LINK_HEADERS: dict[int, int | None] = {LINKTYPE_ETHERNET: None, LINKTYPE_RAW: 0, 113: 16, 228: 0, 229: 0, 276: 20}


class CaptureError(MrcError, ValueError):
    """A file that is no capture, or one that ends in the middle."""

    def __init__(self, source: str, problem: str) -> None:
        super().__init__(f"{source}: {problem}")
        self.problem = problem


@dataclass(frozen=True)
class Interface:
    """Where packets were seen: here, a plane."""

    index: int
    name: str
    description: str
    linktype: int

    @property
    def is_all_mrc(self) -> bool:
        """Whether all its UDP packets are MRC's, as a device says of its own captures: its ports are any free ones."""
        return self.description == _native.MRC_ON_ANY_PORT


@dataclass(frozen=True)
class Record:
    """One captured frame."""

    interface: Interface
    time_ns: int
    frame: bytes
    original_size: int
    comment: str

    @property
    def is_whole(self) -> bool:
        """Whether the capture kept all of the frame."""
        return len(self.frame) == self.original_size

    @property
    def udp_payload(self) -> bytes:
        """The packet and whatever closes it, as captured; empty where there is none."""
        before_ip = _LINK_HEADERS.get(self.interface.linktype, -1)
        if before_ip == -1:
            return b""
        data: bytes = _native.udp_payload(self.frame[before_ip or 0 :], before_ip is None)
        return data

    def parse(self, udp_ports: Collection[int] = ()) -> Frame:
        """The MRC frame in it; one that is none raises `Refused`. `udp_ports` are MRC's. Where none are given the
        interface may say that all are; else it is 4791, or any other on which a packet has the right ICRC. One that was
        seen on its way, with an SRv6 carrier for a destination, is read as it will arrive."""
        before_ip = _LINK_HEADERS.get(self.interface.linktype, -1)
        if before_ip == -1:
            raise Refused("frame", f"link type {self.interface.linktype}, which is not read here", len(self.frame))

        def read(port: int | None) -> Frame:
            frame = Frame.parse(self.frame[before_ip or 0 :], link_header=before_ip is None, udp_port=port)
            return frame if frame.icrc != Sum.BAD else self._arriving(before_ip, port) or frame

        if not udp_ports and self.interface.is_all_mrc:
            return read(None)
        refusals = []
        for port in udp_ports or (UDP_PORT,):
            try:
                return read(port)
            except Refused as error:
                refusals.append(error)
        refused = next((one for one in refusals if one.reason != _native.WRONG_PORT), refusals[0])
        if not udp_ports and refused.reason == _native.WRONG_PORT:
            with suppress(Refused):
                if (frame := read(None)).icrc == Sum.GOOD:
                    return frame
        raise refused

    def _arriving(self, before_ip: int | None, port: int | None) -> Frame | None:
        """The frame as it will be when the switches have taken their uSIDs from its destination, which is what the ICRC
        is of; None where no number of them makes it right."""
        raw = self.frame[before_ip or 0 :]
        ip = 0 if before_ip is not None else 14
        if len(raw) < ip + 40 or raw[ip] >> 4 != 6 or (ip and raw[12:14] != b"\x86\xdd"):
            return None
        at = ip + 24
        for usids in range(1, MAX_USIDS):
            rest = raw[at + 4 + 2 * usids : at + 16]
            shifted = raw[: at + 4] + rest + bytes(2 * usids) + raw[at + 16 :]
            with suppress(Refused):
                frame = Frame.parse(shifted, link_header=before_ip is None, udp_port=port)
                if frame.icrc == Sum.GOOD:
                    return frame
        return None


class PcapngWriter:
    """Writes frames to a file as they come, or to memory when there is no file.

    >>> with PcapngWriter() as capture:
    ...     plane = capture.add_interface("plane0")
    ...     capture.write(plane, time_ns=1_000, frame=bytes(60), comment="sixty zeros")
    >>> len(capture.contents)
    200
    """

    def __init__(self, target: str | FilePath | BinaryIO | None = None, application: str = "softmrc") -> None:
        self._native = _native.PcapngWriter(application)
        self._owns_file = isinstance(target, str | FilePath)
        self._file: BinaryIO | None = None
        if isinstance(target, str | FilePath):
            self._file = FilePath(target).open("wb")  # noqa: SIM115, closed by close()
        else:
            self._file = target
        self._kept = bytearray()
        self._closed = False

    def add_interface(self, name: str, description: str = "", linktype: int = LINKTYPE_ETHERNET) -> int:
        """Declare an interface (a plane) and return its number."""
        index: int = self._native.add_interface(name, description, as_integer("linktype", linktype, 0, 0xFFFF))
        return index

    def write(
        self, interface: int, time_ns: int, frame: bytes, comment: str = "", original_size: int | None = None
    ) -> None:
        """Append one frame; `original_size` is its length on the wire where `frame` is only its beginning."""
        if self._closed:
            raise UsageError("the capture is closed; nothing more can be written to it")
        time_ns = as_integer("time_ns", time_ns, 0, (1 << 64) - 1)
        known = self._native.interfaces
        if not (
            0 <= interface < known and self._native.write(interface, time_ns, bytes(frame), comment, original_size)
        ):
            raise ConfigError("interface", interface, f"must be one of the {known} that add_interface returned")
        if self._native.pending >= _FLUSH_AT:
            self._flush()

    @property
    def contents(self) -> bytes:
        """Everything written so far, for a capture that is kept in memory."""
        if self._file is not None:
            raise UsageError("this capture goes to a file; read it from there")
        self._flush()
        return bytes(self._kept)

    def _flush(self) -> None:
        data = self._native.take()
        if self._file is None:
            self._kept += data
        else:
            self._file.write(data)

    def close(self) -> None:
        """Write out what is pending; a file that was opened here is closed."""
        if self._closed:
            return
        self._flush()
        self._closed = True
        if self._file is not None and self._owns_file:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_pcapng(source: str | FilePath | bytes) -> Iterator[Record]:
    """The records of a capture, in file order; what cannot be read raises CaptureError when it is reached."""
    name = "<bytes>" if isinstance(source, bytes) else str(source)
    try:
        data = source if isinstance(source, bytes) else FilePath(source).read_bytes()
    except OSError as error:
        raise DeviceError(words_of(error)) from error
    return _records(name, data)


def _records(name: str, data: bytes) -> Iterator[Record]:
    reader = _native.PcapngReader(data)
    interfaces: list[Interface] = []
    while (found := reader.next()) is not None:
        while len(interfaces) < reader.interfaces:
            index = len(interfaces)
            interfaces.append(Interface(index, *reader.interface(index)))
        yield Record(interfaces[found[0]], *found[1:])
    if reader.error:
        raise CaptureError(name, reader.error)
