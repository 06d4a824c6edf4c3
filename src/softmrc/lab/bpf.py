"""The program that marks, trims, breaks and loses packets: compiled with clang, loaded with libbpf, kept in a BPF file
system.

The program and its two maps are pinned under the lab's own folder, so that a later `lab fail` finds them; ports are
attached by `tc`, which takes a quarter of a millisecond each.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import struct
import subprocess
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from softmrc.errors import DeviceError, InternalError

FILE_SYSTEM = Path("/run/softmrc/bpf")
_SYSCALL_BPF = {"x86_64": 321, "aarch64": 280}
_LOOKUP, _UPDATE, _OBJ_GET = 1, 2, 7
_PORT, _COUNT = struct.Struct("=6I"), struct.Struct("=5Q")
BLACK_HOLE, LAST_HOP = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str | None:
    """Why there can be no program here, or None."""
    if shutil.which("clang") is None:
        return "clang is not installed (Debian: apt install clang)"
    if os.uname().machine not in _SYSCALL_BPF:
        return f"no BPF on {os.uname().machine}"
    try:
        ctypes.CDLL("libbpf.so.1")
    except OSError:
        return "libbpf.so.1 is not installed (Debian: apt install libbpf1)"
    return None


def compile_program(folder: Path) -> Path:
    """The object file, compiled once for each version of the source."""
    source = (resources.files(__package__) / "switch.bpf.c").read_bytes()
    made = folder / f"switch-{hashlib.sha256(source).hexdigest()[:12]}.o"
    if made.exists():
        return made
    draft = made.with_suffix(f".{os.getpid()}")
    command = ["clang", "-O2", "-g", "-target", "bpf", "-Wall", "-c", "-x", "c", "-", "-o", str(draft)]
    done = subprocess.run(command, input=source, capture_output=True, timeout=60, check=False)
    if done.returncode:
        raise DeviceError(f"clang cannot compile the switch program: {done.stderr.decode()[:300]}")
    draft.replace(made)
    return made


def _mount() -> None:
    FILE_SYSTEM.mkdir(parents=True, exist_ok=True)
    if not os.path.ismount(FILE_SYSTEM) and _libc.mount(b"bpf", os.fsencode(FILE_SYSTEM), b"bpf", 0, None):
        raise DeviceError(f"cannot mount a BPF file system: {os.strerror(ctypes.get_errno())}")


class _Libbpf:
    """The handful of calls that load an object and pin what is in it."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libbpf.so.1", use_errno=True)
        for name in ("bpf_object__open_file", "bpf_object__find_program_by_name", "bpf_object__find_map_by_name"):
            getattr(self._lib, name).restype = ctypes.c_void_p
        self._printer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: 0)
        self._lib.libbpf_set_print(self._printer)

    def load(self, path: Path, folder: Path) -> None:
        lib = self._lib
        opened = lib.bpf_object__open_file(os.fsencode(path), None)
        if not opened:
            raise DeviceError(f"cannot open {path}: {os.strerror(ctypes.get_errno())}")
        thing = ctypes.c_void_p(opened)
        try:
            if error := lib.bpf_object__load(thing):
                raise DeviceError(f"the kernel refuses the switch program: {os.strerror(-error)}")
            program = lib.bpf_object__find_program_by_name(thing, b"leave")
            pins = [(lib.bpf_program__pin, program, "leave")]
            for name in ("ports", "counts"):
                pins.append((lib.bpf_map__pin, lib.bpf_object__find_map_by_name(thing, name.encode()), name))
            for pin, what, name in pins:
                if error := pin(ctypes.c_void_p(what), os.fsencode(folder / name)):
                    raise DeviceError(f"cannot pin {name}: {os.strerror(-error)}")
        finally:
            lib.bpf_object__close(thing)


def load(lab: str, objects: Path) -> Path:
    """Compile, load and pin the program for a lab; the path that `tc` attaches."""
    _mount()
    remove(lab)
    folder = FILE_SYSTEM / lab
    folder.mkdir(mode=0o700)
    _Libbpf().load(compile_program(objects), folder)
    return folder / "leave"


def remove(lab: str) -> None:
    """Forget a lab's program and maps; ports that still hold them keep them until they go."""
    folder = FILE_SYSTEM / lab
    if not folder.is_dir():
        return
    for pinned in list(folder.iterdir()):
        pinned.unlink()
    folder.rmdir()
    if not any(child.is_dir() and child.name not in ("maps.debug", "progs.debug") for child in FILE_SYSTEM.iterdir()):
        _libc.umount(os.fsencode(FILE_SYSTEM))


@dataclass(frozen=True)
class PortRule:
    """What the program does at one port; mirrors `struct port`. Bytes; a zero turns a thing off."""

    black_hole: bool = False
    last_hop: bool = False
    loss: float = 0.0
    ecn_min: int = 0
    ecn_max: int = 0
    trim_at: int = 0
    corrupt: float = 0.0

    def pack(self) -> bytes:
        flags = BLACK_HOLE * self.black_hole | LAST_HOP * self.last_hop
        loss, corrupt = (min(int(share * 2**32), 2**32 - 1) for share in (self.loss, self.corrupt))
        return _PORT.pack(flags, loss, self.ecn_min, self.ecn_max, self.trim_at, corrupt)

    @classmethod
    def unpack(cls, data: bytes) -> PortRule:
        flags, loss, ecn_min, ecn_max, trim_at, corrupt = _PORT.unpack(data)
        shares = loss / 2**32, corrupt / 2**32
        return cls(bool(flags & BLACK_HOLE), bool(flags & LAST_HOP), shares[0], ecn_min, ecn_max, trim_at, shares[1])


@dataclass(frozen=True)
class PortCounts:
    """What the program did at one port; mirrors `struct count`."""

    marked: int = 0
    trimmed: int = 0
    lost: int = 0
    black_holed: int = 0
    corrupted: int = 0


class Maps:
    """The maps of a lab, by interface number."""

    def __init__(self, lab: str) -> None:
        self._ports = _open(FILE_SYSTEM / lab / "ports")
        self._counts = _open(FILE_SYSTEM / lab / "counts")

    def close(self) -> None:
        os.close(self._ports)
        os.close(self._counts)

    def __enter__(self) -> Maps:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, index: int, rule: PortRule) -> None:
        """Begin to act at a port."""
        _element(_UPDATE, self._counts, index, bytes(_COUNT.size))
        _element(_UPDATE, self._ports, index, rule.pack())

    def rule(self, index: int) -> PortRule:
        return PortRule.unpack(_element(_LOOKUP, self._ports, index, bytes(_PORT.size)))

    def change(self, index: int, **fields: float) -> None:
        """Change some of a port's rule."""
        _element(_UPDATE, self._ports, index, replace(self.rule(index), **fields).pack())  # type: ignore[arg-type]

    def counts(self, index: int) -> PortCounts:
        return PortCounts(*_COUNT.unpack(_element(_LOOKUP, self._counts, index, bytes(_COUNT.size))))


def _call(command: int, attributes: bytes) -> int:
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result: int = _libc.syscall(_SYSCALL_BPF[os.uname().machine], command, buffer, 128)
    if result < 0:
        error = ctypes.get_errno()
        raise DeviceError(error, f"bpf command {command}: {os.strerror(error)}")
    return result


def _open(path: Path) -> int:
    name = ctypes.create_string_buffer(os.fsencode(path))
    return _call(_OBJ_GET, struct.pack("=QII", ctypes.addressof(name), 0, 0))


def _element(command: int, fd: int, index: int, value: bytes) -> bytes:
    if command not in (_LOOKUP, _UPDATE):
        raise InternalError(f"{command} is not a command on an element")
    key = ctypes.create_string_buffer(struct.pack("=I", index), 4)
    data = ctypes.create_string_buffer(value, len(value))
    _call(command, struct.pack("=I4xQQQ", fd, ctypes.addressof(key), ctypes.addressof(data), 0))
    return data.raw
