"""A lab's life: up twice, down twice, after a crash, next to namespaces that are not ours, and without root."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from tests.lab.labs import SMALL
from typer.testing import CliRunner

import needs
from softmrc.cli import app
from softmrc.errors import ConfigError, DeviceError, UsageError
from softmrc.lab import Lab, bpf, kernel
from softmrc.lab import state as record
from softmrc.lab.lab import take_down

TINY = "[fabric]\nplanes = 1\nhosts = 2\nhosts_per_leaf = 1\nspines = 1\nfabric_link_bps = '10M'\n"


@pytest.fixture
def name() -> Iterator[str]:
    own = f"life{os.getpid()}"
    yield own
    if os.geteuid() == 0 and record.find(own):
        take_down(own)


def namespaces() -> set[str]:
    return set(os.listdir(kernel.NETNS)) if kernel.NETNS.exists() else set()


def test_without_root_there_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(DeviceError, match=r"^a lab needs root, because .*: run this with sudo$"):
        Lab.up(SMALL)


def test_a_typo_names_the_key_and_the_nearest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(kernel, "require_tools", lambda *_: None)
    with pytest.raises(ConfigError, match=r"fabric\.plane`.*.got 2.*Did you mean fabric.planes"):
        Lab.up("[fabric]\nplane = 2\n")
    with pytest.raises(UsageError, match="too large for one machine"):
        Lab.up("[fabric]\nhosts = 2048\nhosts_per_leaf = 4\n")


@needs.lab
class TestLife:
    def test_up_is_idempotent_and_down_leaves_nothing(self, name: str) -> None:
        before = namespaces()
        lab = Lab.up(TINY, name)
        made = namespaces() - before
        assert {f"softmrc-{name}-{node}" for node in ("host0", "host1", "p0.leaf0", "p0.leaf1", "p0.spine0")} <= made
        inodes = dict(lab.record.namespaces)
        assert Lab.up(TINY, name).record.namespaces == inodes
        with pytest.raises(UsageError, match="up from another file"):
            Lab.up(TINY.replace("spines = 1", "spines = 2"), name)
        refused = CliRunner().invoke(app, ["lab", "down", name, "--lab", "another"])
        assert isinstance(refused.exception, ConfigError) and record.find(name)
        assert CliRunner().invoke(app, ["lab", "down", name]).exit_code == 0
        assert not {n for n in namespaces() if n.startswith(f"softmrc-{name}-")}
        assert record.find(name) is None
        with pytest.raises(UsageError, match=f"no lab {name} is up"):
            Lab.find(name)

    def test_a_failed_build_is_rolled_back(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(told: object) -> None:
            raise DeviceError("this kernel refuses")

        monkeypatch.setattr(Lab, "_configure", lambda self, told: refuse(told))
        with pytest.raises(DeviceError, match="refuses"):
            Lab.up(TINY, name)
        assert not {n for n in namespaces() if n.startswith(f"softmrc-{name}-")} and record.find(name) is None

    def test_what_a_crash_leaves_is_cleaned_up_by_the_next_up(self, name: str) -> None:
        lab = Lab.up(TINY, name)
        lab.record.complete = False
        lab.record.namespaces = dict.fromkeys(lab.record.namespaces, 0)
        lab.record.save()
        kernel.delete_namespaces([lab.namespace(lab.shape.parse_node("host1"))])
        with Lab.up(TINY, name) as again:
            assert again.record.complete and all(state.is_up for state in again.ports())

    def test_without_clang_a_lab_runs_without_trimming_and_says_so(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bpf, "missing", lambda: "clang is not installed")
        with Lab.up(TINY + "[switch]\ntrim = true\n", name) as lab:
            assert (lab.record.acts, lab.record.without) == (False, "clang is not installed")
            assert all(state.is_up for state in lab.ports())

    def test_a_namespace_that_is_not_ours_is_never_touched(self, name: str) -> None:
        foreign = f"softmrc-{name}-host1"
        subprocess.run(["ip", "netns", "add", foreign], check=True)
        try:
            with pytest.raises(DeviceError, match=f"{foreign} exists and no lab of ours made it"):
                Lab.up(TINY, name)
            assert foreign in namespaces() and record.find(name) is None
        finally:
            subprocess.run(["ip", "netns", "delete", foreign], check=True)

    def test_a_namespace_made_anew_under_our_name_is_left_alone(self, name: str) -> None:
        lab = Lab.up(TINY, name)
        foreign = f"softmrc-{name}-host1"
        # Held open, so that the kernel cannot give the next namespace the same number.
        held = os.open(kernel.NETNS / foreign, os.O_RDONLY)
        try:
            subprocess.run(["ip", "netns", "delete", foreign], check=True)
            subprocess.run(["ip", "netns", "add", foreign], check=True)
            lab.down()
            assert foreign in namespaces()
        finally:
            os.close(held)
            subprocess.run(["ip", "netns", "delete", foreign], check=True)

    def test_commands_run_inside_a_node(self, name: str) -> None:
        with Lab.up(TINY, name) as lab:
            with lab.inside("host1"):
                seen = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
            assert "p0@" in seen and "d0@" not in seen
            with pytest.raises(ConfigError, match="no such node"):
                lab.execute("host7", ["true"])


@needs.lab
def test_what_runs_in_a_lab_ends_with_it() -> None:
    with Lab.up(TINY, f"ends{os.getpid()}") as lab:
        with lab.inside("host0"):
            inside = subprocess.Popen(["sleep", "600"])
        outside = subprocess.Popen(["sleep", "600"])
    try:
        assert inside.wait(10) == -signal.SIGTERM
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait()
