"""Four planes between four ranks on one machine: each rank and each plane's switch is a network namespace, each link a
veth pair, each switch a kernel bridge. The kernel breaks them; TCP and MRC have the same links and the same faults.

TCP gets what a host with several networks can give it: a separate address, routed over all planes (ECMP by flow),
and routes that follow at once when a link goes down at either end. A routing protocol would take longer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from softmrc.demo.namespaces import Namespace
from softmrc.demo.ranks import DemoRanks, RankPlace
from softmrc.demo.script import STEPS, ScriptedFault
from softmrc.demo.traffic import Sampler
from softmrc.errors import DeviceError

MTU = 9000
SLOW_BPS = 10_000_000
SYSCTLS = {
    "fib_multipath_hash_policy": "1",  # by addresses and ports
    "fib_multipath_use_neigh": "1",
    "conf/all/ignore_routes_with_linkdown": "1",
    "conf/default/ignore_routes_with_linkdown": "1",
    "conf/all/rp_filter": "0",
    "conf/default/rp_filter": "0",
}
FAULTS = (
    ScriptedFault("planes 1 and 2 silent", "silent", (1, 2)),
    ScriptedFault("link of rank 1 to plane 1 down", "down", (1,), rank=1),
    ScriptedFault("link of rank 3 to plane 3 flapping", "flap", (3,), rank=3),
    ScriptedFault("plane 2 silent", "silent", (2,)),
    ScriptedFault(f"plane 0 slowed to {SLOW_BPS // 10**6} Mb/s", "slow", (0,)),
)


class Planes:
    """Use it as a context: at its end, whatever ended it, the kernel removes everything with its last descriptor."""

    steps = STEPS
    breaks_tcp = True
    tcp_text = (
        "TCP has a separate address on each rank, routed over all planes (ECMP by flow). Its routes leave out a "
        "link that is down at either end, at once; a routing protocol would take longer."
    )

    def __init__(self, ranks: int, planes: int = 4) -> None:
        self.ranks, self.planes = ranks, planes
        self.text = f"{planes} planes of veth links between network namespaces; the kernel breaks them for both jobs"
        self._open = ExitStack()
        self._down: set[tuple[int, int]] = set()  # rank, plane
        self.can_slow = True

    def __enter__(self) -> Planes:
        try:
            self._hosts = [self._new() for _ in range(self.ranks)]
            self._switches = [self._new() for _ in range(self.planes)]
            for switch in self._switches:
                switch.netlink.add_link("bridge", "bridge", mtu=MTU)
                switch.netlink.set_up("bridge")
            for rank, host in enumerate(self._hosts):
                self._wire(rank, host)
            for rank in range(self.ranks):
                self._route(rank)
            self._try_to_slow()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _new(self) -> Namespace:
        made = Namespace()
        self._open.callback(made.close)
        return made

    def _wire(self, rank: int, host: Namespace) -> None:
        with host.inside():
            for name, value in SYSCTLS.items():
                with open(f"/proc/sys/net/ipv4/{name}", "w") as file:
                    file.write(value)
        host.netlink.set_up("lo")
        for plane, switch in enumerate(self._switches):
            switch.netlink.add_veth(f"rank{rank}", f"plane{plane}", host.descriptor, MTU)
            switch.netlink.attach(f"rank{rank}", "bridge")
            switch.netlink.set_up(f"rank{rank}")
            host.netlink.add_address(f"plane{plane}", _on_plane(rank, plane), 24)
            host.netlink.set_up(f"plane{plane}")
        host.netlink.add_veth("tcp", "tcp-peer", host.descriptor, MTU)  # not every kernel has dummy interfaces
        host.netlink.add_address("tcp", _of_tcp(rank), 32)
        host.netlink.set_up("tcp-peer")
        host.netlink.set_up("tcp")

    def _route(self, rank: int) -> None:
        """The routes between this rank and the others, over planes that are up at both ends."""
        for other in range(self.ranks):
            if other == rank:
                continue
            for here, there in ((rank, other), (other, rank)):
                usable = [p for p in range(self.planes) if not self._down & {(here, p), (there, p)}]
                hops = [(f"plane{plane}", _on_plane(there, plane)) for plane in usable]
                self._hosts[here].netlink.set_route(_of_tcp(there), _of_tcp(here), hops)

    def _try_to_slow(self) -> None:
        try:
            self._slow(0, SLOW_BPS)
            self._slow(0, 0)
        except DeviceError:
            self.can_slow = False  # a kernel without the token bucket filter

    @property
    def faults(self) -> tuple[ScriptedFault, ...]:
        return tuple(one for one in FAULTS if self.can_slow or one.kind != "slow")

    def places(self) -> list[RankPlace]:
        """Where the ranks run."""
        found = []
        for rank, host in enumerate(self._hosts):
            planes = ",".join(_on_plane(rank, plane) for plane in range(self.planes))
            found.append(RankPlace({"SOFTMRC_PLANES": planes, "GLOO_SOCKET_IFNAME": "tcp"}, host.inside))
        return found

    def break_it(self, ranks: DemoRanks, fault: ScriptedFault, is_broken: bool) -> None:
        for plane in fault.planes:
            if fault.kind == "silent":
                self._switches[plane].netlink.set_up("bridge", not is_broken)
            elif fault.kind == "slow":
                self._slow(plane, SLOW_BPS if is_broken else 0)
            elif fault.rank is not None:
                self._switches[plane].netlink.set_up(f"rank{fault.rank}", not is_broken)
                (self._down.add if is_broken else self._down.discard)((fault.rank, plane))
                self._route(fault.rank)

    def _slow(self, plane: int, bits_per_s: int) -> None:
        for rank in range(self.ranks):
            self._switches[plane].netlink.limit_rate(f"rank{rank}", bits_per_s)

    @contextmanager
    def sampled(self) -> Iterator[Sampler]:
        """Counts what crosses the switches, by the kernel's counters, until the context ends."""
        with ExitStack() as files:
            counters = []
            for switch in self._switches:
                with switch.inside():
                    counters.append(os.open("/proc/thread-self/net/dev", os.O_RDONLY | os.O_CLOEXEC))
                files.callback(os.close, counters[-1])
            sampler = Sampler(counters)
            files.callback(sampler.stop)
            yield sampler


def _on_plane(rank: int, plane: int) -> str:
    return f"10.77.{plane}.{rank + 1}"


def _of_tcp(rank: int) -> str:
    return f"10.78.0.{rank + 1}"
