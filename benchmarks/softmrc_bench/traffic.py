"""Traffic for a lab to be measured under: every host sends to one other, as fast as it can.

A kind of traffic is four calls (`Traffic`). Multipath TCP is here as the neighbour to compare with: one connection a
pair of hosts, one subflow a plane, each over its own SRv6 path. MRC comes by `mrc`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from softmrc.errors import DeviceError
from softmrc.fabric import Node, Tier
from softmrc.lab import Lab, kernel

IPPROTO_MPTCP = 262
PORT = 5000


class Traffic(Protocol):
    """What a measurement needs to know of the load."""

    def start(self) -> None: ...
    def received_bytes(self) -> list[int]: ...  # by receiving host
    def errors(self) -> int: ...
    def stop(self) -> None: ...


class NotHere(Exception):
    """Why a kind of traffic cannot be had; a measurement then reports null and this reason."""


def permutation(hosts: int, hosts_per_leaf: int) -> dict[int, int]:
    """Who sends to whom: each to the same place under the next leaf, so that every packet crosses the fabric."""
    return {host: (host + hosts_per_leaf) % hosts for host in range(hosts)}


def mrc(lab: Lab) -> Traffic:
    """Queue pairs over the lab's SRv6 paths."""
    from softmrc_bench.mrc_traffic import Mrc

    return Mrc(lab)


class Mptcp:
    """Multipath TCP on the same lab."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._pairs = permutation(lab.shape.hosts, lab.shape.hosts_per_leaf)
        self._received = [0] * lab.shape.hosts
        self._errors = 0
        self._ending = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._check()

    def _check(self) -> None:
        if not self._lab.description.lab.encap:
            raise NotHere("needs routes into outer headers: lab.encap is false")
        try:
            self._socket(0).close()
        except OSError as error:
            raise NotHere(f"this kernel has no Multipath TCP: {error.strerror}") from None

    def _socket(self, host: int) -> socket.socket:
        with self._lab.inside(Node(Tier.HOST, 0, host)):
            return socket.socket(socket.AF_INET6, socket.SOCK_STREAM, IPPROTO_MPTCP)

    def _path(self, source: int) -> int:
        """Flows spread over the spines by their source; a subflow keeps its path, as TCP must."""
        return source % self._lab.shape.spines

    def _address(self, host: int, sender: int) -> None:
        """Addresses a plane for both ends of a host's flows, and routes that leave from the one of their plane."""
        plan, shape = self._lab.plan, self._lab.shape
        to, path = self._pairs[host], self._path(host)
        lines = []
        for plane in range(shape.planes):
            own = plan.path_address(host, plane, path)
            segments = plan.path(host, to, plane, path).destination
            lines.append(f"address replace {own}/128 dev lo nodad")
            lines.append(
                f"route replace {plan.path_address(to, plane, path)}/128 encap seg6 mode encap.red segs {segments} "
                f"via fe80::b dev p{plane} src {own}"
            )
        with self._lab.inside(Node(Tier.HOST, 0, host)):
            kernel.batch("ip", lines, f"host{host}")
            kernel.run(["ip", "mptcp", "endpoint", "flush"])
            commands = [["ip", "mptcp", "limits", "set", "subflow", "8", "add_addr_accepted", "8"]]
            for plane in range(1, shape.planes):
                signalled = str(plan.path_address(host, plane, self._path(sender)))
                commands.append(["ip", "mptcp", "endpoint", "add", signalled, "signal"])
            for command in commands:
                done = kernel.run(command)
                if done.returncode:
                    raise NotHere(f"cannot configure Multipath TCP: {' '.join(done.stderr.split())[:200]}")

    def start(self) -> None:
        senders = {to: host for host, to in self._pairs.items()}
        for host in self._pairs:
            self._address(host, senders[host])
        for host in self._pairs:
            listener = self._socket(host)
            listener.bind(("::", PORT))
            listener.listen(1)
            self._sockets.append(listener)
            self._run(self._receive, listener, host)
        for host, to in self._pairs.items():
            sender = self._socket(host)
            self._sockets.append(sender)
            sender.settimeout(5)
            try:
                sender.connect((str(self._lab.plan.path_address(to, 0, self._path(host))), PORT))
            except OSError as error:
                raise DeviceError(f"host{host} cannot connect to host{to}: {error}") from None
            sender.settimeout(0.5)
            self._run(self._send, sender)

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _receive(self, listener: socket.socket, host: int) -> None:
        buffer = bytearray(1 << 18)
        try:
            connection, _ = listener.accept()
            with connection:
                while not self._ending.is_set():
                    size = connection.recv_into(buffer)
                    if not size:
                        break
                    self._received[host] += size
        except OSError:
            self._errors += not self._ending.is_set()

    def _send(self, sender: socket.socket) -> None:
        data = bytes(1 << 16)
        while not self._ending.is_set():
            try:
                sender.send(data)
            except TimeoutError:
                continue
            except OSError:
                self._errors += not self._ending.is_set()
                return

    def received_bytes(self) -> list[int]:
        return list(self._received)

    def errors(self) -> int:
        return self._errors

    def stop(self) -> None:
        self._ending.set()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(timeout=2)
