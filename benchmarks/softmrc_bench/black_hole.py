"""A black hole that can be switched in microseconds: a six-line BPF program on the receiving end of a link.

Whatever arrives is dropped while a word in a map is not zero, without a report. Needs root and Linux 6.6 (tcx).
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import threading

from softmrc.errors import DeviceError

_BPF_SYSCALL = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_UPDATE, _PROG_LOAD, _LINK_CREATE = 0, 2, 5, 28
_MAP_ARRAY = 2
_PROG_SCHED_CLS = 3
_TCX_INGRESS = 46
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, attributes: bytes) -> int:
    number = _BPF_SYSCALL.get(platform.machine())
    if number is None:
        raise DeviceError(f"no BPF on {platform.machine()} here")
    raw = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    result = _libc.syscall(number, command, raw, len(raw))
    if result < 0:
        code = ctypes.get_errno()
        raise DeviceError(code, f"bpf command {command}: {os.strerror(code)}")
    return result


def _instruction(code: int, dst: int = 0, src: int = 0, offset: int = 0, imm: int = 0) -> bytes:
    return struct.pack("<BBhi", code, dst | src << 4, offset, imm)


def _program(map_fd: int) -> bytes:
    return b"".join(
        (
            _instruction(0x62, dst=10, offset=-4),  # key = 0, on the stack
            _instruction(0xBF, dst=2, src=10),
            _instruction(0x07, dst=2, imm=-4),
            _instruction(0x18, dst=1, src=1, imm=map_fd) + bytes(8),
            _instruction(0x85, imm=1),  # look it up
            _instruction(0x15, dst=0, offset=2),  # not there: pass
            _instruction(0x61, dst=1, src=0),
            _instruction(0x55, dst=1, offset=2),  # not zero: drop
            _instruction(0xB7, dst=0, imm=-1),
            _instruction(0x95),
            _instruction(0xB7, dst=0, imm=2),
            _instruction(0x95),
        )
    )


class BlackHole:
    """The receiving ends of one or more links, by (namespace, interface)."""

    def __init__(self, ends: list[tuple[str, str]]) -> None:
        self._map = _bpf(_MAP_CREATE, struct.pack("<IIII", _MAP_ARRAY, 4, 4, 1))
        code = _program(self._map)
        keep = ctypes.create_string_buffer(code, len(code))
        license_text = ctypes.create_string_buffer(b"Apache-2.0")
        program = _bpf(
            _PROG_LOAD,
            struct.pack(
                "<IIQQ", _PROG_SCHED_CLS, len(code) // 8, ctypes.addressof(keep), ctypes.addressof(license_text)
            ),
        )
        self._links: list[int] = []
        problems: list[BaseException] = []
        for namespace, interface in ends:
            # A separate thread, because entering a namespace cannot be undone.
            worker = threading.Thread(target=self._attach, args=(program, namespace, interface, problems))
            worker.start()
            worker.join()
        os.close(program)
        if problems:
            self.close()
            raise problems[0]

    def _attach(self, program: int, namespace: str, interface: str, problems: list[BaseException]) -> None:
        try:
            fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
            try:
                if _libc.setns(fd, _CLONE_NEWNET) != 0:
                    raise DeviceError(ctypes.get_errno(), f"cannot enter namespace {namespace}")
            finally:
                os.close(fd)
            index = socket.if_nametoindex(interface)
            self._links.append(_bpf(_LINK_CREATE, struct.pack("<IIII", program, index, _TCX_INGRESS, 0)))
        except BaseException as error:
            problems.append(error)

    def set(self, is_dead: bool) -> None:
        key, value = ctypes.c_uint32(0), ctypes.c_uint32(int(is_dead))
        pointers = struct.pack("<IIQQQ", self._map, 0, ctypes.addressof(key), ctypes.addressof(value), 0)
        _bpf(_MAP_UPDATE, pointers)

    def close(self) -> None:
        for fd in (*self._links, self._map):
            os.close(fd)
        self._links = []
