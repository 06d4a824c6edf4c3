"""Network namespaces without names: each lives as long as a process or a descriptor holds it, so none can be left over.

An ordinary user gets the permission from a user namespace, where this machine allows those: the command starts again
inside one.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from softmrc.demo.netlink import Netlink
from softmrc.errors import DeviceError

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
is_restarted = False  # by `restart_in_user_namespace`


def _unshare(flags: int) -> None:
    if _libc.unshare(flags):
        code = ctypes.get_errno()
        raise DeviceError(code, f"this machine permits no network namespace: {os.strerror(code)}")


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET):
        raise DeviceError(f"cannot enter a namespace: {os.strerror(ctypes.get_errno())}")


def _of_this_thread() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


class Namespace:
    """A new network namespace, and a netlink socket inside it."""

    def __init__(self) -> None:
        home = _of_this_thread()
        try:
            _unshare(CLONE_NEWNET)
            try:
                self.descriptor = _of_this_thread()
                self.netlink = Netlink()
            finally:
                _enter(home)
        finally:
            os.close(home)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Run the calling thread in it; a process that is started here is in it too."""
        home = _of_this_thread()
        try:
            _enter(self.descriptor)
            try:
                yield
            finally:
                _enter(home)
        finally:
            os.close(home)

    def close(self) -> None:
        self.netlink.close()
        os.close(self.descriptor)


def enter_user_namespace() -> None:
    """Move this process, which must have one thread, into a user namespace in which it keeps its user and group, and
    into a network namespace of that one: it could not come back to one that is not."""
    user, group = os.geteuid(), os.getegid()
    _unshare(CLONE_NEWUSER | CLONE_NEWNET)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def why_not(in_user_namespace: bool = False) -> str:
    """Empty where this process could make namespaces with links between them; else the reason. A forked child tries."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            try:
                if in_user_namespace:
                    enter_user_namespace()
                one, other = Namespace(), Namespace()
                one.netlink.add_link("bridge", "bridge")
                one.netlink.add_veth("near", "far", other.descriptor)
                with one.inside():
                    Path("/proc/sys/net/ipv4/fib_multipath_hash_policy").write_text("1")
            except BaseException as error:
                number = getattr(error, "errno", None)
                os.write(writer, (os.strerror(number) if number else str(error) or "it failed").encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        why = answer.read().decode(errors="replace")
    os.waitpid(child, 0)
    return why


def restart_in_user_namespace() -> None:
    """Run this command again inside a user namespace, as the same process: its signals and exit code stay its own."""
    os.execv(sys.executable, [sys.executable, "-P", __file__, *sys.argv[1:]])


if __name__ == "__main__":
    enter_user_namespace()
    from softmrc.__main__ import main
    from softmrc.demo import namespaces

    namespaces.is_restarted = True
    main()
