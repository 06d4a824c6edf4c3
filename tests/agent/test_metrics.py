"""What an agent tells Prometheus: names, values, bounds; and a Prometheus that reads it."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.agent.prometheus import NEEDS_PROMETHEUS, PROMTOOL, RULES, a_prometheus, until
from tests.agent.sites import a_site, get
from tests.control.pretended import Pretended, a_device, device, home

import needs
from softmrc.engine import counters
from softmrc.ops import control
from softmrc.ops.agent.collect import Collector, PolledDevice, Rates
from softmrc.ops.agent.metrics import MAX_PEERS, WORST_PATHS, metric_name, text_of

ROOT = Path(__file__).parents[2]
__all__ = ["device", "home"]  # fixtures


def values() -> dict[tuple[str, ...], float]:
    """Every sample, by its name and the values of its labels but the device."""
    collector = Collector()
    try:
        text = text_of(collector).decode()
    finally:
        collector.close()
    return {
        (sample.name, *(value for key, value in sorted(sample.labels.items()) if key != "device")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_devices_count_is_told_with_units_at_the_end(device: Pretended) -> None:
    found = values()
    assert found["softmrc_devices",] == 1
    assert found["softmrc_plane_sent_bytes_total", "0"] == 4_000_000
    assert found["softmrc_plane_received_packets_total", "1"] == 900
    assert found["softmrc_device_hold_ups_total",] == 1
    assert found["softmrc_peer_retransmitted_packets_total", "127.0.0.2:4791"] == 7
    assert found["softmrc_peer_round_trip_seconds", "127.0.0.2:4791"] == pytest.approx(31.5e-6)
    assert found["softmrc_paths", "0", "assumed_bad"] == 1 and found["softmrc_paths", "0", "good"] == 1
    device.up[1] = False
    assert values()["softmrc_plane_up", "1"] == 0


def test_every_counter_has_its_words_and_a_name_of_its_own(device: Pretended) -> None:
    collector = Collector()
    families = {family.name: family for family in text_string_to_metric_families(text_of(collector).decode())}
    collector.close()
    for room, declared in (("plane", counters.PLANE), ("peer", counters.QP), ("device", counters.LANE)):
        for counter, words in declared.items():
            assert families[metric_name(room, counter)].documentation == words
            assert families[metric_name(room, counter)].type == "counter"


def test_how_many_series_there_are_is_bounded(device: Pretended) -> None:
    (row,) = device.on_qps({})["qps"]
    many = []
    for i in range(500):
        evs = [dict(ev, drops=i + 1) for ev in row["evs"]]
        many.append(row | {"qpn": i, "peer": {"number": i, "planes": [f"10.0.{i // 250}.{i % 250}:4791"]}, "evs": evs})
    device.on_qps = lambda _: {"qps": many}  # type: ignore[method-assign]
    found = values()
    peers = {key[1] for key in found if key[0] == "softmrc_peer_queue_pairs"}
    assert len(peers) == MAX_PEERS + 1 and "other" in peers
    assert sum(value for key, value in found.items() if key[0] == "softmrc_peer_queue_pairs") == 500
    assert sum(key[0] == "softmrc_path_lost_packets" for key in found) <= WORST_PATHS


def test_rates_are_of_differences_and_never_negative() -> None:
    rates = Rates()
    for at, sent in ((10.0, 1000), (12.0, 2000), (13.0, 500)):
        rates.add(at, sent, 0)
    assert [(at, sent) for at, sent, _ in rates.points] == [(12.0, 4000.0), (13.0, 0.0)]


def test_a_device_that_dies_is_forgotten_and_counted(home: Path) -> None:
    collector = Collector()
    with a_device(home, Pretended()):
        assert len(collector.look()) == 1
        assert collector.look()[0] is collector.look()[0], "asked once, however many look"
    collector._asked_at = 0.0
    assert collector.look() == [] and collector.failures == 1
    collector.close()
    assert collector.look() == [], "and no device is queried any more"


class Held(Pretended):
    """Answers nothing while it is held, as a process that is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.may, self.was_asked = threading.Event(), threading.Event()

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        self.was_asked.set()
        self.may.wait(20)
        return super().__call__(request)


def names(collector: Collector) -> list[str]:
    collector._asked_at = 0.0
    return sorted(one.name for one in collector.look())


def test_a_device_that_is_stopped_holds_up_nobody(home: Path) -> None:
    """Three are stopped, and no caller waits for one after the other; continued, they are there again, with no event
    reported twice."""
    held = [Held() for _ in range(3)]
    for one in held:
        one.tell("ev_state")
        one.may.set()
    with ExitStack() as stack:
        for number, one in enumerate(held):
            stack.enter_context(a_device(home, one, f"{number + 1}-0"))
        stack.enter_context(a_device(home, Pretended(), "9-0"))
        collector = stack.enter_context(closing(Collector()))
        assert names(collector) == ["1-0", "2-0", "3-0", "9-0"]
        for one in held:
            one.may.clear()
            one.was_asked.clear()
        assert names(collector) == ["9-0"] and all(one.was_asked.is_set() for one in held)
        assert collector.failures == 0, "no caller has waited until the devices' own timeout"
        assert names(collector) == ["9-0"]
        for one in held:
            one.may.set()
        for _ in range(100):
            if len(names(collector)) == 4:
                break
            time.sleep(0.02)
        assert names(collector) == ["1-0", "2-0", "3-0", "9-0"]
        assert len(collector.recent_events()) == len(held)


def test_a_device_that_was_given_up_is_asked_again(home: Path) -> None:
    held = Held()
    held.tell("ev_state")
    with a_device(home, held, "1-0") as path, closing(Collector()) as collector:
        collector._asked["1-0"] = PolledDevice(control.DeviceClient(path, timeout_s=0.6))
        for _ in range(200):
            assert names(collector) == []
            if collector.failures:
                break
            time.sleep(0.05)
        assert collector.failures
        held.may.set()
        for _ in range(200):
            if names(collector):
                break
            time.sleep(0.05)
        assert names(collector) == ["1-0"] and len(collector.recent_events()) == 1


def test_an_agent_without_devices_answers_in_a_sentence(home: Path) -> None:
    with a_site() as port:
        assert get(port, "/healthz") == (200, "ok, no device is running\n")
        status, text = get(port, "/metrics")
        assert status == 200 and "softmrc_devices 0.0" in text
        assert json.loads(get(port, "/api/state")[1])["devices"] == []
        assert get(port, "/")[0] == 404


@NEEDS_PROMETHEUS
def test_a_prometheus_scrapes_two_hosts(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two agents with different devices, as two hosts would have; the rules are loaded too."""
    first, second = Pretended(), Pretended()
    second.up = [True, False]
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    with a_device(home, first), a_site() as one, a_device(other / "softmrc", second):
        get(one, "/healthz")
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))
        with a_site() as two, a_prometheus(tmp_path, [f"127.0.0.1:{one}", f"127.0.0.1:{two}"]) as ask:
            get(two, "/healthz")
            rows = until(ask, "softmrc_plane_up", lambda rows: len({row["metric"]["instance"] for row in rows}) == 2)
            targets, rules = ask("targets")["activeTargets"], ask("rules")["groups"]
    assert {target["health"] for target in targets} == {"up"}
    down = [(row["metric"]["instance"], row["metric"]["plane"]) for row in rows if row["value"][1] == "0"]
    assert down == [(f"127.0.0.1:{two}", "1")]
    assert rules and all(rule["health"] in ("ok", "unknown") for group in rules for rule in group["rules"])


@needs.tools("promtool")
def test_the_alert_rules_fire_when_they_should_and_not_before() -> None:
    assert PROMTOOL is not None
    for words in (["check", "rules", str(RULES)], ["test", "rules", str(RULES.with_name("softmrc.rules.test.yml"))]):
        done = subprocess.run([PROMTOOL, *words], capture_output=True, text=True, timeout=60, cwd=RULES.parent)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_and_the_rules_ask_only_for_what_the_agent_tells(device: Pretended) -> None:
    import re

    names = {key[0] for key in values()}
    for file in (RULES, ROOT / "contrib" / "grafana" / "softmrc.json"):
        text = file.read_text()
        asked = set(re.findall(r"\bsoftmrc_[a-z_]+\b", text))
        assert asked and asked <= names, f"{file.name}: {sorted(asked - names)}"
    dashboard = json.loads((ROOT / "contrib" / "grafana" / "softmrc.json").read_text())
    assert dashboard["panels"] and all(panel["targets"] for panel in dashboard["panels"])
