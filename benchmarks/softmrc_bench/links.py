"""What the defaults make of links: goodput as a share of what they carry, and the share of packets retransmitted.

Between two namespaces over shaped links, as root. Nothing is set: what a device needs to know of its links it has to
find out. What links carry is the sum of their rates, less the headers of full packets; where this machine cannot move
that much, it is what one TCP stream moves over the same link in the same run.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softmrc._support.subprocesses import python_command
from softmrc.errors import DeviceError
from softmrc_bench.figures import BenchFigure, Sampled, dumps
from softmrc_bench.ranks import BenchRanks
from softmrc_bench.veth import address_of, link_of, planes_of, run, veth_planes

MESSAGE = 1 << 18
DEPTH = 32
BUFFER = 8 << 20
ALL_REDUCE_BYTES = 64 << 20
GIGABIT = 1000
WIRE_OVERHEAD = 82  # Ethernet, IPv4, UDP, and ours: what a shaped link counts of a packet besides its payload


@dataclass(frozen=True)
class Case:
    """Links between two nodes."""

    rates_mbps: tuple[int, ...]
    delay_us: float = 0.0  # added in each direction
    mtu: int = 1500
    beside_tcp: bool = False  # faster than some machines


CASES = {
    "100M": Case((100, 100)),
    "1G": Case((1000, 1000)),
    "10G": Case((10_000,), mtu=9000, beside_tcp=True),
    "1G+250M": Case((1000, 250)),
    "200M, 10 ms": Case((200, 200), delay_us=5_000),  # added delay is a copy a packet: more would measure that
}

FIGURES = (
    BenchFigure(
        "defaults_1g_ms", "all-reduce of 64 MiB, 2 ranks, 2 links of 1 Gb/s, default settings", "ms", 300, False
    ),
    BenchFigure("links_share", "goodput over link capacity, default settings, worst kind of link", "", 0.9, True),
    BenchFigure(
        "links_retransmitted", "share of packets retransmitted, default settings, worst kind of link", "", 0.005, False
    ),
)


def dropped(names: Sequence[str], planes: int) -> int:
    """Packets that full queues of the links dropped."""
    total = 0
    for side, name in enumerate(names):
        for plane in range(planes):
            rows = json.loads(run("tc", "-n", name, "-s", "-j", "qdisc", "show", "dev", link_of(side, plane)))
            total += sum(row.get("drops", 0) for row in rows)
    return total


def inside(names: tuple[str, str], case: Case, seconds: float, **settings: Any) -> dict[str, Any]:
    """One case; runs in the first namespace."""
    from softmrc_bench.udp import SECRET, Flow, sink, tcp_gbps

    planes = len(case.rates_mbps)
    host = address_of(1, 0)
    prefix = ("ip", "netns", "exec", names[1])
    with sink(prefix) as one, sink(prefix) as two:
        flow = Flow(
            one, host, BUFFER, planes_of(0, planes), planes_of(1, planes), secret=SECRET, seal="off", **settings
        )
        device, qp = flow.connection.device, flow.connection.qp
        carried = sum(case.rates_mbps) * 1e6 * device.mtu / (device.mtu + WIRE_OVERHEAD)
        if case.beside_tcp:
            carried = min(carried, tcp_gbps(two, host, seconds, BUFFER) * 1e9)
        if case.delay_us:
            device.set_faults(delay_us=case.delay_us)
            flow.tell(faults={"delay_us": case.delay_us})
        before = dropped(names, planes)
        start = time.perf_counter()
        done = flow.write_while(lambda: time.perf_counter() - start < seconds, MESSAGE, DEPTH)
        took = time.perf_counter() - start
        stats, query = qp.stats(), qp.query()
        flow.close()
    return {
        "share": done * MESSAGE * 8 / took / carried,
        "retransmitted": stats["packets_retransmitted"] / stats["packets_sent"],
        "mbps": done * MESSAGE * 8 / took / 1e6,
        "dropped": dropped(names, planes) - before,
        "window_bytes": query["window_bytes"],
        "round_trip_us": query["smoothed_rtt_us"],
    }


def all_reduce_ms(rounds: int) -> float:
    """64 MiB between two ranks over two links of 1 Gb/s, the median."""
    with veth_planes(2, rate_mbps=GIGABIT) as lab, tempfile.TemporaryDirectory(prefix="softmrc-") as store:
        commands = [
            ["ip", "netns", "exec", lab.names[side]]
            + python_command("softmrc_bench.ranks", store, str(side), "2", "{}", *planes_of(side, 2))
            for side in (0, 1)
        ]
        with BenchRanks(commands) as ranks:
            ranks.times(ALL_REDUCE_BYTES, 2)
            return Sampled(1e3 * step_s for step_s in ranks.times(ALL_REDUCE_BYTES, rounds))


def measure(quick: bool = False) -> dict[str, Any]:
    """All cases; nulls and a reason where this machine does not let us make namespaces."""
    try:
        figures: dict[str, Any] = {"defaults_1g_ms": all_reduce_ms(3 if quick else 9)}
        found = {}
        for name, case in CASES.items():
            with veth_planes(len(case.rates_mbps), case.mtu, case.rates_mbps) as lab:
                found[name] = lab.inside(0, "softmrc_bench.links", *lab.names, name, "1.0" if quick else "4.0")
    except DeviceError as error:
        return {"defaults_1g_ms": None, "links": None, "links_refused": str(error)}
    figures["links"] = found
    figures["links_share"] = min(row["share"] for row in found.values())
    figures["links_retransmitted"] = max(row["retransmitted"] for row in found.values())
    return figures


if __name__ == "__main__":
    first, second, name, seconds, *more = sys.argv[1:]
    print(dumps(inside((first, second), CASES[name], float(seconds), **json.loads(more[0] if more else "{}"))))
