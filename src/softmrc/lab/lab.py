"""A running lab: hosts and switches as namespaces, cables as veth pairs, each node configured exactly as the linux
target of `softmrc fabric config` writes it.

A build that fails is rolled back. What is built is decided here; what breaks it is in `faults`.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from softmrc.errors import DeviceError, UsageError
from softmrc.fabric import AddressPlan, Description, Node, Tier, parse
from softmrc.fabric import host as fabric_host
from softmrc.fabric.config.linux import ANCHOR, LinuxNode, configure
from softmrc.fabric.config.ports import Port
from softmrc.fabric.config.queues import thresholds
from softmrc.lab import bpf, kernel
from softmrc.lab import state as record
from softmrc.lab.state import LabState, namespace_of

T = TypeVar("T")
FIRST_INDEX = 1000  # a port's interface number is this plus its directed link's
MAX_NODES = 1000
_WORKERS = 4


@dataclass(frozen=True)
class PortState:
    """One direction of a cable, as its sending port sees it."""

    link: int
    node: Node
    port: str
    is_up: bool
    packets: int
    bytes: int
    counts: bpf.PortCounts
    dropped: int = 0  # by the queue; only where `queues` is set
    waiting_bytes: int = 0


class Lab:
    """A lab that is up. Use it as a context to have it taken down at the end, whatever happens."""

    def __init__(self, found: LabState) -> None:
        self.record = found
        self.description = parse(found.description, found.name)
        self.shape = self.description.fabric
        self.plan = AddressPlan(self.shape, self.description.addressing)
        # Enough to look at a lab and to break it; building and repairing take the whole text, from `told`.
        self.nodes = {node: configure(self.description, self.plan, node, False) for node in self.shape.nodes()}

    @property
    def name(self) -> str:
        return self.record.name

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    # Up and down.

    @classmethod
    def up(cls, text: str, default_name: str = "mrc") -> Lab:
        """Build a lab from the text of its file. One that is up already, from the same text, is left as it is."""
        kernel.require_root()
        kernel.require_tools("ip", "tc")
        description = parse(text, default_name)
        _check_size(description)
        with record.locked():
            found = record.find(description.name)
            if found is not None and found.complete and _is_whole(found):
                if parse(found.description, found.name) != description:
                    raise UsageError(f"lab {found.name} is up from another file; take it down first: softmrc lab down")
                return cls(found)
            if found is not None:
                _remove(found)
            return cls._build(LabState(description.name, text))

    @classmethod
    def _build(cls, made: LabState) -> Lab:
        start = time.monotonic()
        lab = cls(made)
        lab._claim_names()
        try:
            lab._wire()
            lab._start_program()
            lab._each(list(lab.nodes.values()), lab._configure)
            made.complete, made.up_s = True, time.monotonic() - start
            made.save()
        except BaseException:
            _remove(made)
            raise
        return lab

    @classmethod
    def find(cls, name: str | None = None) -> Lab:
        """The lab of this name; without a name, the only one that is up."""
        kernel.require_root()
        return cls(record.the_one(name))

    def down(self) -> None:
        """Remove everything this lab made."""
        kernel.require_root()
        with record.locked():
            _remove(record.find(self.name) or self.record)

    def _claim_names(self) -> None:
        """Record the names before they are used, and refuse those that are taken."""
        names = [self.namespace(node) for node in self.nodes]
        taken = [name for name in names if kernel.inode_of(name) is not None]
        if taken:
            raise DeviceError(f"namespace {taken[0]} exists and no lab of ours made it: give this lab another name")
        self.record.namespaces = dict.fromkeys(names, 0)
        self.record.save()

    def _wire(self) -> None:
        """Namespaces, then one veth pair for each cable, born in place with the interface numbers we want."""
        kernel.add_namespaces(list(self.record.namespaces))
        self.record.namespaces = {name: kernel.inode_of(name) or 0 for name in self.record.namespaces}
        self.record.save()
        ends: dict[int, tuple[str, str]] = {}
        for node, told in self.nodes.items():
            ends |= {p.port.link: (self.namespace(node), p.port.name) for p in told.ports}
        lines = []
        for link in sorted(ends):
            up, down = self.shape.links_of(self.shape.cable_of(link))
            if link != up:
                continue
            (near, near_port), (far, far_port) = ends[up], ends[down]
            lines.append(
                f"link add name {near_port} index {FIRST_INDEX + up} netns {near} type veth "
                f"peer name {far_port} index {FIRST_INDEX + down} netns {far}"
            )
        kernel.batch("ip", lines, "the cables")

    def _start_program(self) -> None:
        """Load the program where ECN or trimming is wanted and possible; otherwise report why not, and go on."""
        wanted = self.description.switch
        if not (wanted.ecn or wanted.trim):
            return
        self.record.without = bpf.missing() or ""
        if self.record.without:
            return
        bpf.load(self.name, record.FOLDER)
        self.record.acts = True
        with bpf.Maps(self.name) as maps:
            for node, told in self.nodes.items():
                for port in told.ports:
                    maps.add(FIRST_INDEX + port.port.link, self._rule(node, port.port))

    def _rule(self, node: Node, port: Port) -> bpf.PortRule:
        """A host's port only fails; a switch's marks (not on the last hop) and trims."""
        if node.tier is Tier.HOST:
            return bpf.PortRule()
        at, wanted = thresholds(self.description, port), self.description.switch
        marks = wanted.ecn and not port.is_last_hop
        return bpf.PortRule(
            last_hop=port.is_last_hop,
            ecn_min=at.ecn_min if marks else 0,
            ecn_max=at.ecn_max if marks else 0,
            trim_at=at.trim if wanted.trim else 0,
        )

    def node_config(self, node: Node) -> LinuxNode:
        """The configuration of a node, as the linux target writes it."""
        return configure(self.description, self.plan, node)

    def _configure(self, brief: LinuxNode) -> None:
        told = self.node_config(brief.node)
        with kernel.inside(self.namespace(told.node)):
            if told.is_switch:
                kernel.batch("ip", [f"link add {ANCHOR} type ifb"], told.name)
            kernel.write_sysctls(told.sysctls)
            kernel.batch("ip", told.ip_lines, told.name)
            kernel.batch("tc", told.tc_lines + self._attachments(told), told.name)
            if not told.is_switch and self.description.lab.checksums:
                kernel.turn_off_checksum_offload([port.port.name for port in told.ports])

    def _attachments(self, told: LinuxNode) -> list[str]:
        if not self.record.acts:
            return []
        program = bpf.FILE_SYSTEM / self.name / "leave"
        names = [port.port.name for port in told.ports]
        return [f"qdisc add dev {name} clsact" for name in names] + [
            f"filter add dev {name} egress bpf da object-pinned {program}" for name in names
        ]

    # Inside.

    def namespace(self, node: Node) -> str:
        return namespace_of(self.name, self.shape.name_of(node))

    def _each(self, items: Sequence[LinuxNode], work: Callable[[LinuxNode], T]) -> list[T]:
        """Do the same in several namespaces at once, each in a thread that enters it."""
        with ThreadPoolExecutor(max_workers=_WORKERS) as pool:
            return list(pool.map(work, items))

    def inside(self, node: str | Node) -> AbstractContextManager[None]:
        """Run the calling thread inside a node: `with lab.inside("host0"):`."""
        found = self.shape.parse_node(node) if isinstance(node, str) else node
        return kernel.inside(self.namespace(found))

    def socket(self, host: int, kind: int = socket.SOCK_DGRAM) -> socket.socket:
        """A socket of a host; it stays there, whatever namespace its user is in."""
        with self.inside(Node(Tier.HOST, 0, host)):
            return socket.socket(socket.AF_INET6, kind)

    def execute(self, node: str, command: Sequence[str]) -> None:
        """Become this command, inside a node."""
        found = self.shape.parse_node(node)
        kernel.enter(self.namespace(found))
        if found.tier is Tier.HOST:
            os.environ |= {fabric_host.FILE: str(self.record.file), fabric_host.NUMBER: str(found.index)}
        try:
            os.execvp(command[0], list(command))
        except OSError as error:
            raise DeviceError(f"cannot run {command[0]} in {node}: {error.strerror}") from None

    # What it does.

    def ports(self, queues: bool = False) -> list[PortState]:
        """Every port with its state and what it has sent, in the order of nodes and ports."""
        with self.maps() as maps:
            found = self._each(list(self.nodes.values()), lambda told: self._look(told, maps, queues))
        return [state for states in found for state in states]

    def _look(self, told: LinuxNode, maps: bpf.Maps | None, queues: bool) -> list[PortState]:
        names = [port.port.name for port in told.ports]
        with kernel.inside(self.namespace(told.node)):
            up, sent = kernel.ports_up(names), kernel.sent_by_port()
            waiting = kernel.queues_by_port() if queues else {}
        found = []
        for port in told.ports:
            link, name = port.port.link, port.port.name
            counts = maps.counts(FIRST_INDEX + link) if maps else bpf.PortCounts()
            moved, queue = sent.get(name, (0, 0)), waiting.get(name, (0, 0))
            found.append(PortState(link, told.node, name, up[name], *moved, counts, *queue))
        return found

    def packets(self) -> dict[int, int]:
        """Packets sent over each directed link so far."""
        return {state.link: state.packets for state in self.ports()}

    @contextmanager
    def maps(self) -> Iterator[bpf.Maps | None]:
        if not self.record.acts:
            yield None
            return
        with bpf.Maps(self.name) as maps:
            yield maps

    # How it breaks: see faults.

    def fail(self, target: str, mode: str, plane: int = 0) -> str:
        """Break a cable or a node; returns its full name. Modes: see faults."""
        from softmrc.lab import faults

        return faults.fail(self, target, mode, plane)

    def heal(self, target: str | None = None, plane: int = 0) -> list[str]:
        """Repair one thing, or everything; returns what was repaired."""
        from softmrc.lab import faults

        return faults.heal(self, target, plane)


def _check_size(description: Description) -> None:
    nodes = description.fabric.hosts + description.fabric.switches
    if nodes > MAX_NODES:
        raise UsageError(f"a lab of {nodes:,} namespaces is too large for one machine: at most {MAX_NODES:,}")


def _is_whole(found: LabState) -> bool:
    return all(inode and kernel.inode_of(name) == inode for name, inode in found.namespaces.items())


def _remove(found: LabState) -> None:
    """Remove what a record lists, and the record last: what could not be removed stays known."""
    for pid, started in found.flappers.values():
        if record.is_alive(pid, started):
            os.kill(pid, signal.SIGTERM)
    kernel.end_processes_in({inode for inode in found.namespaces.values() if inode})
    ours = [n for n, inode in found.namespaces.items() if not inode or kernel.inode_of(n) in (None, inode)]
    kernel.delete_namespaces(ours)
    try:
        bpf.remove(found.name)
    except OSError as error:
        raise DeviceError(f"cannot remove the program of lab {found.name}: {error.strerror}") from None
    found.remove()


def take_down(name: str | None, everything: bool = False) -> list[str]:
    """Remove one lab, or all; a record that no longer describes a lab is cleaned up just the same."""
    kernel.require_root()
    gone = []
    for each in record.names() if everything else [record.the_one(name).name]:
        with record.locked():
            if found := record.find(each):
                _remove(found)
                gone.append(each)
    return gone
