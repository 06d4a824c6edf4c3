"""Agents on two hosts of a lab, which real devices are on, and a real Prometheus on one of them that scrapes both."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.agent.prometheus import NEEDS_PROMETHEUS, a_prometheus, until
from tests.lab.labs import SMALL, a_lab

import needs
from softmrc.device import Device
from softmrc.fabric.host import FabricHost
from softmrc.lab import Lab

pytestmark = [*needs.LAB, needs.BPF, NEEDS_PROMETHEUS]
TOKEN = secrets.token_hex(16)
HERE, THERE = 0, 3


@contextmanager
def a_host(lab: Lab, number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A device and an agent on a host, as its user would run them; where the agent is reached."""
    place = folder / f"host{number}"
    place.mkdir(mode=0o700)
    here = FabricHost(lab.description, number)
    listen = f"[{here.plan.host_address(number)}]:9464"
    with monkeypatch.context() as patch, ExitStack() as stack:
        patch.setenv("XDG_RUNTIME_DIR", str(place))
        with lab.inside(f"host{number}"):
            stack.enter_context(Device(here.planes, routes=here.paths, **here.settings()))
            agent = subprocess.Popen(
                [str(Path(sys.executable).with_name("softmrc")), "exporter", "--listen", listen],
                env=os.environ | {"SOFTMRC_TOKEN": TOKEN},
                stdout=subprocess.PIPE,
            )
        try:
            assert agent.stdout is not None and agent.stdout.readline()
            yield listen
        finally:
            agent.terminate()
            agent.wait(20)


def test_a_prometheus_scrapes_two_hosts_of_a_lab_and_sees_a_cable_pulled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_lab(SMALL) as lab, ExitStack() as stack:
        agents = [stack.enter_context(a_host(lab, number, tmp_path, monkeypatch)) for number in (HERE, THERE)]
        with lab.inside(f"host{HERE}"), a_prometheus(tmp_path, agents, TOKEN) as ask:
            rows = until(ask, "softmrc_plane_up == 1", lambda rows: len(rows) == 4)
            seen = {(row["metric"]["instance"], row["metric"]["plane"]) for row in rows}
            assert seen == {(at, plane) for at in agents for plane in "01"}, ask("targets")["activeTargets"]
            lab.fail(f"p1.host{THERE}-leaf1", "down")
            down = until(ask, "softmrc_plane_up == 0", bool)
            assert [(row["metric"]["instance"], row["metric"]["plane"]) for row in down] == [(agents[1], "1")]
            firing = until(ask, 'ALERTS{alertname="SoftmrcPlaneDown"}', bool)
            assert [(row["metric"]["instance"], row["metric"]["plane"]) for row in firing] == [(agents[1], "1")]
            lab.heal()
            assert len(until(ask, "softmrc_plane_up == 1", lambda rows: len(rows) == 4)) == 4
