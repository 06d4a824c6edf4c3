"""Every system call that our libraries make is refused in a test, or it is said why not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import needs
from softmrc import _core
from softmrc.nccl import plugin_path

import calls  # isort: skip

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
REFUSED = {call for table in TABLES for _, call in table} | set(calls.OPENING) | set(calls.CONNECTOR)

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
