"""Devices as metrics, by Prometheus' conventions: base units at the end of names, counters end in _total.

How many series there are is bounded whatever the devices do: per plane and peer, and per path only for the worst.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as MetricsCollector

from softmrc.engine import counters
from softmrc.ops.agent.collect import Collector, DeviceSample

MAX_PEERS = 64  # of a device; the rest are "other"
WORST_PATHS = 10  # of a device
PREFIX = "softmrc"
STATES = ("good", "skip", "assumed_bad", "denied")


def metric_name(room: str, counter: str) -> str:
    """`bytes_sent` of a plane is softmrc_plane_sent_bytes: what is counted comes last."""
    unit, _, rest = counter.partition("_")
    return f"{PREFIX}_{room}_{rest}_{unit}" if unit in ("bytes", "packets") and rest else f"{PREFIX}_{room}_{counter}"


def peer_of(queue_pair: dict[str, Any]) -> str:
    planes = (queue_pair.get("peer") or {}).get("planes") or ["none"]
    return str(planes[0])


class DeviceMetrics(MetricsCollector):
    """All devices of a host, asked when Prometheus asks."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterator[Metric]:
        seen = self._collector.look()
        yield GaugeMetricFamily(f"{PREFIX}_devices", "Running devices that answer.", value=len(seen))
        yield CounterMetricFamily(f"{PREFIX}_agent_failures", "Devices that did not answer.", self._collector.failures)
        lost = "Events that devices forgot before the agent asked."
        yield CounterMetricFamily(f"{PREFIX}_agent_lost_events", lost, self._collector.events_lost)
        info = GaugeMetricFamily(f"{PREFIX}_device_info", "Who a device is.", labels=["device", "kind", "pid"])
        for one in seen:
            info.add_metric([one.name, str(one.info.get("kind", "")), str(one.info.get("pid", ""))], 1)
        yield info
        yield from self._planes(seen)
        yield from self._lanes(seen)
        yield from self._peers(seen)
        yield from self._paths(seen)

    def _planes(self, seen: list[DeviceSample]) -> Iterator[Metric]:
        labels = ["device", "plane"]
        rows = [(one.name, str(i), row) for one in seen for i, row in enumerate(one.stats.get("planes", []))]
        words = {"is_up": "up", "is_admin_up": "admin_up", "is_link_up": "link_up"}
        meanings = {"is_up": "by both", "is_admin_up": "by its administrator", "is_link_up": "by its link"}
        for key, word in words.items():
            gauge = GaugeMetricFamily(
                f"{PREFIX}_plane_{word}", f"Whether a plane is up, {meanings[key]}.", labels=labels
            )
            for device, plane, row in rows:
                gauge.add_metric([device, plane], float(bool(row.get(key, row.get("is_up")))))
            yield gauge
        for counter, meaning in counters.PLANE.items():
            family = CounterMetricFamily(metric_name("plane", counter), meaning, labels=labels)
            for device, plane, row in rows:
                family.add_metric([device, plane], float(row.get(counter, 0)))
            yield family

    def _lanes(self, seen: list[DeviceSample]) -> Iterator[Metric]:
        for counter, meaning in {**counters.ENDPOINT, **counters.LANE}.items():
            family = CounterMetricFamily(metric_name("device", counter), meaning, labels=["device"])
            for one in seen:
                family.add_metric([one.name], float(sum(row.get(counter, 0) for row in one.stats.get("lanes", []))))
            yield family

    def _peers(self, seen: list[DeviceSample]) -> Iterator[Metric]:
        sums: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        trips: dict[tuple[str, str], float] = {}
        pairs: Counter[tuple[str, str]] = Counter()
        for one in seen:
            kept = _busiest(one.queue_pairs)
            for qp in one.queue_pairs:
                peer = peer_of(qp)
                key = (one.name, peer if peer in kept else "other")
                pairs[key] += 1
                for counter in counters.QP:
                    sums[key][counter] += int(qp.get("stats", {}).get(counter, 0))
                trips[key] = max(trips.get(key, 0.0), float(qp.get("smoothed_rtt_us") or 0) / 1e6)
        labels = ["device", "peer"]
        count = GaugeMetricFamily(f"{PREFIX}_peer_queue_pairs", "Queue pairs to a peer.", labels=labels)
        trip = GaugeMetricFamily(f"{PREFIX}_peer_round_trip_seconds", "The longest smoothed round trip.", labels=labels)
        for key, number in pairs.items():
            count.add_metric(list(key), number)
            trip.add_metric(list(key), trips[key])
        yield count
        yield trip
        for counter, meaning in counters.QP.items():
            family = CounterMetricFamily(metric_name("peer", counter), meaning, labels=labels)
            for key, row in sums.items():
                family.add_metric(list(key), row[counter])
            yield family

    def _paths(self, seen: list[DeviceSample]) -> Iterator[Metric]:
        labels = ["device", "plane", "state"]
        states = GaugeMetricFamily(f"{PREFIX}_paths", "Paths of queue pairs, by state.", labels=labels)
        more = ["device", "peer", "plane", "ev"]
        worst = GaugeMetricFamily(f"{PREFIX}_path_lost_packets", "Lost on a path; the worst of a device.", labels=more)
        for one in seen:
            found = [(peer_of(qp), ev) for qp in one.queue_pairs for ev in qp.get("evs", [])]
            counts = Counter((str(ev["plane"]), str(ev["state"])) for _, ev in found)
            for plane in sorted({plane for plane, _ in counts}):
                for state in STATES:
                    states.add_metric([one.name, plane, state], counts[plane, state])
            ill = sorted((pair for pair in found if pair[1].get("drops")), key=lambda pair: -pair[1]["drops"])
            lost: Counter[tuple[str, str, str]] = Counter()
            for peer, ev in ill[:WORST_PATHS]:
                lost[peer, str(ev["plane"]), str(ev["value"])] += ev["drops"]
            for key, drops in lost.items():
                worst.add_metric([one.name, *key], drops)
        yield states
        yield worst


def _busiest(queue_pairs: list[dict[str, Any]]) -> set[str]:
    volume: Counter[str] = Counter()
    for qp in queue_pairs:
        stats = qp.get("stats", {})
        volume[peer_of(qp)] += int(stats.get("bytes_sent", 0)) + int(stats.get("bytes_placed", 0)) + 1
    return {peer for peer, _ in volume.most_common(MAX_PEERS)}


def text_of(collector: Collector) -> bytes:
    """Everything, as Prometheus reads it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(DeviceMetrics(collector))
    return generate_latest(registry)
