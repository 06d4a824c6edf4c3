"""The kernel as a lab needs it: namespaces, batches of `ip` and `tc`, offloads, port states and counters.

Everything that must happen inside a namespace runs in a thread that has entered it (`inside`). A process started from
there is in it too, without the remounting that `ip netns exec` does.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from softmrc.errors import DeviceError

NETNS = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS, _SIOCETHTOOL = 0x8913, 0x8946
_ETHTOOL_STXCSUM = 0x17
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_TIMEOUT_S = 60.0
_LAST_WORDS = 50  # times 20 ms, for processes of a lab that goes
_MAX_TRIES = 100  # of a batch without progress
_STOPPED_AT = re.compile(r"Command failed -:(\d+)")
_libc = ctypes.CDLL(None, use_errno=True)


def require_root() -> None:
    """Refuse without root."""
    if os.geteuid() != 0:
        raise DeviceError("a lab needs root, because it makes network namespaces and interfaces: run this with sudo")


def require_tools(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        package = "nftables" if "nft" in missing else "iproute2"
        raise DeviceError(f"this needs {' and '.join(missing)}, which is not installed (Debian: apt install {package})")


def run(command: Sequence[str], lines: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run a command, with these lines as its input; it inherits the namespace of the calling thread."""
    text = "\n".join(lines) + "\n" if lines else None
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)


def batch(tool: str, lines: Sequence[str], what: str) -> None:
    """Give a batch to `ip` or `tc`.

    Each route into an outer header takes a little memory per processor, which the kernel refills in the background:
    many of them at once exhaust it for a moment. So a batch that stopped for want of memory goes on where it stopped.
    """
    command = [tool, "-6", "-batch", "-"] if tool == "ip" else [tool, "-batch", "-"]
    left, tries = list(lines), _MAX_TRIES
    while left:
        done = run(command, left)
        if done.returncode == 0:
            return
        stopped = _STOPPED_AT.search(done.stderr)
        if "Cannot allocate memory" not in done.stderr or stopped is None or tries == 0:
            raise DeviceError(f"{tool} refused the configuration of {what}: {' '.join(done.stderr.split())[:300]}")
        finished = int(stopped[1]) - 1
        left = left[finished:]
        tries = _MAX_TRIES if finished else tries - 1
        time.sleep(0.01)


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Run the calling thread inside a namespace."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(namespace)
        try:
            yield
        finally:
            if _libc.setns(home, _CLONE_NEWNET):
                raise DeviceError(f"cannot leave {namespace}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(home)


def enter(namespace: str) -> None:
    """Move the calling thread into a namespace, for good."""
    try:
        there = os.open(NETNS / namespace, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise DeviceError(f"there is no namespace {namespace}: {error.strerror}") from None
    try:
        if _libc.setns(there, _CLONE_NEWNET):
            raise DeviceError(f"cannot enter {namespace}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(there)


def inode_of(namespace: str) -> int | None:
    """The namespace's identity, or None where there is none."""
    try:
        return (NETNS / namespace).stat().st_ino
    except OSError:
        return None


def add_namespaces(names: Sequence[str]) -> None:
    done = run(["ip", "-batch", "-"], [f"netns add {name}" for name in names])
    if "not permitted" in done.stderr:
        raise DeviceError(
            "a lab needs root of this machine, because it makes network namespaces, and root may not do that here: "
            "is this a container? (docker: --privileged)"
        )
    if done.returncode:
        raise DeviceError(f"cannot make namespaces: {' '.join(done.stderr.split())[:300]}")


def delete_namespaces(names: Sequence[str]) -> None:
    """Delete what is there; one that is gone already is no error."""
    present = [name for name in names if (NETNS / name).exists()]
    if present:
        run(["ip", "-force", "-batch", "-"], [f"netns delete {name}" for name in present])
    left = [name for name in present if (NETNS / name).exists()]
    if left:
        raise DeviceError(f"cannot delete {len(left)} namespaces, the first of them {left[0]}")


def processes_in(inodes: set[int]) -> list[int]:
    """Who lives in one of these namespaces, ourselves excepted."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            is_there = folder.name.isdigit() and (folder / "ns" / "net").stat().st_ino in inodes
        except OSError:  # it has ended
            continue
        if is_there and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def end_processes_in(inodes: set[int]) -> None:
    """A namespace lives as long as a process in it: ask them to go, then make them."""
    for step in (signal.SIGTERM, signal.SIGKILL):
        for pid in processes_in(inodes):
            with suppress(ProcessLookupError):
                os.kill(pid, step)
        for _ in range(_LAST_WORDS):
            if not processes_in(inodes):
                return
            time.sleep(0.02)


def write_sysctls(settings: Sequence[tuple[str, str]]) -> None:
    """Set the calling thread's namespace; a key that this kernel does not have is an error."""
    for key, value in settings:
        try:
            with open(f"/proc/sys/{key}", "w") as file:
                file.write(value)
        except OSError as error:
            raise DeviceError(f"cannot set {key} to {value}: {error.strerror}") from None


def turn_off_checksum_offload(ports: Sequence[str]) -> None:
    """Make the calling thread's namespace write real checksums; segmentation offload goes with it."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as control:
        for port in ports:
            command = ctypes.create_string_buffer(struct.pack("II", _ETHTOOL_STXCSUM, 0))
            request = struct.pack("16sP8x", port.encode(), ctypes.addressof(command))
            try:
                fcntl.ioctl(control, _SIOCETHTOOL, request)
            except OSError as error:
                raise DeviceError(f"cannot turn offloads of {port} off: {error.strerror}") from None


def ports_up(ports: Sequence[str]) -> dict[str, bool]:
    """Which ports of the calling thread's namespace are up and have a carrier."""
    found = {}
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as control:
        for port in ports:
            try:
                answer = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16s24x", port.encode()))
            except OSError:
                found[port] = False
                continue
            flags = struct.unpack_from("H", answer, 16)[0]
            found[port] = flags & (_IFF_UP | _IFF_RUNNING) == _IFF_UP | _IFF_RUNNING
    return found


def sent_by_port() -> dict[str, tuple[int, int]]:
    """Packets and bytes that each port of the calling thread's namespace has sent."""
    found = {}
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]:
        name, _, numbers = line.partition(":")
        values = [int(number) for number in numbers.split()]
        found[name.strip()] = (values[9], values[8])
    return found


def queues_by_port() -> dict[str, tuple[int, int]]:
    """Packets that each port's queue had no room for, and the bytes that wait in it now."""
    done = run(["tc", "-s", "-j", "qdisc", "show"])
    try:
        found = json.loads(done.stdout or "[]")
    except ValueError:
        found = []
    return {q["dev"]: (q.get("drops", 0), q.get("backlog", 0)) for q in found if q.get("root")}
