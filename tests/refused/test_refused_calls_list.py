"""Every system call that our libraries make is refused in a test, or it is said why not."""

from __future__ import annotations

import errno
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import needs
from softmrc import _core
from softmrc.nccl import plugin_path

import calls  # isort: skip

CORE = Path(__file__).resolve().parents[2] / "core"
TABLES = (
    calls.DRIVER,
    calls.NO_ROOM,
    calls.NOBODY_THERE,
    calls.LINKS,
    calls.LISTENER,
    calls.CONTROL,
    calls.RANKS,
    calls.PLUGIN,
)
REFUSED = (
    {call for table in TABLES for _, call in table} | set(calls.OPENING) | set(calls.LISTENING) | set(calls.CONNECTOR)
)

# Of the C library, what ends in the system, as far as anything that we call does.
SYSTEM_CALLS = REFUSED | set(calls.NOT_REFUSED) | {
    "accept", "clone", "creat", "dup", "dup2", "dup3", "epoll_create", "epoll_pwait", "eventfd_read", "eventfd_write",
    "execve", "flock", "fork", "fsync", "ftruncate", "getdents64", "getrlimit", "inotify_init1", "kill", "link",
    "lseek", "mkfifo", "mlock", "mremap", "msync", "open64", "openat", "pipe", "pipe2", "posix_fallocate", "pread",
    "pwrite", "readlink", "readv", "recvfrom", "rename", "rmdir", "select", "sendfile", "sendmsg", "sendto",
    "setrlimit", "shm_open", "shutdown", "sigaction", "signalfd", "socketpair", "statx", "symlink", "timerfd_create",
    "timerfd_settime", "truncate", "vfork", "wait4", "waitpid",
}  # fmt: skip


@needs.tools("nm")
@pytest.mark.parametrize("library", [Path(str(_core.__file__)), plugin_path()], ids=["core", "plugin"])
def test_each_call_is_refused_or_excused(library: Path) -> None:
    listing = subprocess.run(
        ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, timeout=60, check=True
    )
    asked = {line.split()[-1].partition("@")[0] for line in listing.stdout.splitlines() if line.strip()}
    assert "recvmmsg" in asked, "the check would find nothing"
    missing = (asked & SYSTEM_CALLS) - REFUSED - set(calls.NOT_REFUSED)
    assert not missing, f"refused by no test, nor excused in calls.py: {sorted(missing)}"


def test_nothing_is_both() -> None:
    assert not REFUSED & set(calls.NOT_REFUSED)


# What each call of the bootstrap is refused with at least: a shortage of descriptors, of memory, of threads; a signal.
LEAST = {
    "accept4": {errno.EMFILE, errno.ENOMEM, errno.EINTR},
    "bind": {errno.ENOMEM},
    "connect": {errno.ENOMEM, errno.EINTR},
    "epoll_create1": {errno.EMFILE, errno.ENOMEM},
    "epoll_ctl": {errno.ENOMEM},
    "epoll_wait": {errno.EINTR, errno.ENOMEM},
    "getpeername": {errno.ENOBUFS},
    "getsockname": {errno.ENOBUFS},
    "getsockopt": {errno.ENOBUFS},
    "listen": {errno.ENOMEM},
    "pthread_create": {errno.EAGAIN},
    "recv": {errno.EINTR, errno.ENOMEM},
    "send": {errno.EINTR, errno.ENOMEM},
    "setsockopt": {errno.ENOMEM},
    "socket": {errno.EMFILE, errno.ENOMEM},
}
CALL = re.compile(rf"(?<![\w.>])(?:::)?({'|'.join(LEAST)})\(")


def merged(*tables: Any) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for table in tables:
        for key, errors in table.items():
            found.setdefault(key if isinstance(key, str) else key[1], set()).update(errors)
    return found


BOOTSTRAP = {
    "listener": (("acceptor", "handshake_io"), merged(calls.LISTENER, calls.LISTENING)),
    "connector": (("connector", "handshake_io"), merged(calls.CONNECTOR, calls.SOURCE)),
    "NCCL": (
        ("acceptor", "connector", "handshake_io"),
        merged(calls.PLUGIN, calls.PLUGIN_LISTENS, calls.PLUGIN_CONNECTS),
    ),
}


@pytest.mark.parametrize("who", BOOTSTRAP)
def test_each_call_of_the_bootstrap_is_refused_there(who: str) -> None:
    files, refused = BOOTSTRAP[who]
    made = {call for file in files for call in CALL.findall((CORE / "host" / f"{file}.cpp").read_text())}
    assert {"epoll_wait", "recv", "send"} <= made, "the check would find nothing"
    missing = {call: LEAST[call] - refused.get(call, set()) for call in made}
    assert not {call: errors for call, errors in missing.items() if errors}
