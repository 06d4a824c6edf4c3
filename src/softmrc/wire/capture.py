"""Capture files: pcapng written, pcapng and pcap read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path as FilePath
from types import TracebackType
from typing import BinaryIO, Self

from softmrc._core import wire as _native
from softmrc.errors import ConfigError, DeviceError, MrcError, UsageError
from softmrc.wire.fields import as_integer

LINKTYPE_ETHERNET = 1
LINKTYPE_RAW = 101
_FLUSH_AT = 1 << 20


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
            raise ConfigError("interface", interface, f"one of the {known} that add_interface returned")
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
        raise DeviceError(f"{name}: {error.strerror}") from error
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
