"""What can be distinguished where paths are chosen by a hash, and that nothing else is named."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.control.pretended import Pretended, a_device, home
from tests.control.test_real import connection
from typer.testing import CliRunner

from softmrc.cli import app
from softmrc.connection import Connection
from softmrc.errors import ConfigError
from softmrc.ops import control
from softmrc.ops.mapper import ecmp
from softmrc.ops.mapper.ecmp import EcmpSample, judge
from softmrc.ops.mapper.inference import State

__all__ = ["connection", "home"]  # fixtures
HOSTS, PLANES, SPINES = [f"10.0.0.{i}" for i in range(6)], 3, 4
PORTS = [50_000 + i for i in range(8)]


def probed(
    rng: random.Random, loss_of: Callable[[str, str, int, int], float], sources: list[str], rounds: int
) -> list[EcmpSample]:
    """Every source's probes to everybody, over a fabric that loses this share of what goes this way."""
    cells = []
    for source in sources:
        for destination in HOSTS:
            for plane in range(PLANES):
                for port in PORTS:
                    if source != destination:
                        loss = loss_of(source, destination, plane, port)
                        lost = sum(rng.random() < max(loss, 1e-5) for _ in range(rounds))
                        cells.append(EcmpSample(source, destination, plane, port, rounds, lost))
    return cells


@pytest.mark.parametrize("loss", [1.0, 0.3, 0.02])
@pytest.mark.parametrize("kind", ["plane", "port", "pair", "path"])
@pytest.mark.parametrize("seed", range(8))
def test_the_one_component_that_is_broken_is_named_and_nothing_else(kind: str, loss: float, seed: int) -> None:
    rng = random.Random(f"{kind} {loss} {seed}")
    plane, (source, destination), port = rng.randrange(PLANES), rng.sample(HOSTS, 2), rng.choice(PORTS)

    def loss_of(a: str, b: str, p: int, s: int) -> float:
        is_it = {
            "plane": True,
            "port": source in (a, b),
            "pair": (a, b) == (source, destination),
            "path": (a, b, s) == (source, destination, port),
        }[kind]
        return loss if p == plane and is_it else 0.0

    (found,) = judge(probed(rng, loss_of, HOSTS, 1000 if loss < 0.1 else 60))
    assert (found.kind, found.plane) == (kind, plane)
    assert found.state is (State.DEAD if loss == 1 else State.LOSSY) and found.share == pytest.approx(loss, rel=0.6)
    if kind != "plane":
        assert found.source == source
    if kind in ("pair", "path"):
        assert found.destination == destination
    if kind == "path":
        assert found.source_ports == (port,)


@pytest.mark.parametrize("seed", range(5))
def test_a_dead_spine_is_paths_between_many_pairs(seed: int) -> None:
    """Which switch a source port's packets cross is the hash's secret: each path that is lost is named, and no more."""
    rng = random.Random(seed)
    spine_of = {(a, b, p, s): rng.randrange(SPINES) for a in HOSTS for b in HOSTS for p in range(PLANES) for s in PORTS}
    cells = probed(rng, lambda a, b, p, s: float(p == 1 and spine_of[a, b, p, s] == 2), HOSTS, 40)
    named = {(one.source, one.destination, port) for one in judge(cells) for port in one.source_ports}
    wanted = {(a, b, s) for (a, b, p, s), spine in spine_of.items() if p == 1 and spine == 2 and a != b}
    whole = [one for one in judge(cells) if one.kind != "path"]
    covered = {key for key in wanted if any((one.source, one.destination) == key[:2] for one in whole)}
    assert named | covered == wanted and all(one.kind == "pair" for one in whole)


def test_one_host_alone_cannot_tell_a_plane_from_its_own_port() -> None:
    cells = probed(random.Random(1), lambda a, b, p, s: float(p == 0), HOSTS[:1], 40)
    (found,) = judge(cells)
    assert (found.kind, found.source, found.plane) == ("port", HOSTS[0], 0)
    two = [one for one in cells if one.destination == HOSTS[3]]
    assert [one.kind for one in judge(two)] == ["pair"], "nor its port from a pair, with one peer"


def test_a_healthy_fabric_with_a_few_losses_is_left_alone() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        assert judge(probed(rng, lambda *_: 5e-5, HOSTS, 200)) == []
    assert judge([]) == [] and judge([EcmpSample("a", "b", 0, 1, 0, 0)]) == []


@pytest.mark.slow
def test_the_command_with_a_path_that_is_silent(home: Path, tmp_path: Path) -> None:
    device = Pretended()
    device.silent_evs = {50_001}
    device.source_ports = [50_000, 50_001, 50_002]
    saved = tmp_path / "cells.json"
    with a_device(home, device):
        words = ["mapper", "ecmp", "--rounds", "3", "--output", str(saved)]
        done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 3, done.output
    found: dict[str, Any] = json.loads(done.output)
    assert found["probes"] == 2 * 3 * 3
    assert [(one["kind"], one["plane"], one["source_ports"]) for one in found["findings"]] == [
        ("path", 0, [50_001]), ("path", 1, [50_001]),
    ]  # fmt: skip
    again = CliRunner().invoke(app, ["mapper", "ecmp", "--rounds", "0", str(saved)])
    assert again.output.count("50001") == 2 and again.output.count("3 lost, 0 fine") == 2
    assert "no device is running" in str(CliRunner().invoke(app, ["mapper", "ecmp"]).exception)
    for text in (
        "",
        "{}",
        '{"cells": [7]}',
        '{"cells": [{"source": 1}]}',
        saved.read_text().replace('"lost": 3', '"lost": 4'),
    ):
        saved.write_text(text)
        assert isinstance(
            CliRunner().invoke(app, ["mapper", "ecmp", "--rounds", "0", str(saved)]).exception, ConfigError
        )


def test_a_plane_that_is_dead_between_real_devices(connection: Connection) -> None:
    connection.write(connection.remote[0], 0, bytes(10_000))
    connection.device.set_faults(1, black_hole=True)
    with control.DeviceClient(Path(connection.device.control)) as node:
        cells = ecmp.probe_all(node, 3, timeout_s=0.3)
    assert {one.plane for one in judge(cells)} == {1} and all(one.state is State.DEAD for one in judge(cells))
