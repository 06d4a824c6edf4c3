"""A command that is run in another user's folder runs nothing that lies there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from softmrc._support.subprocesses import python_command
from softmrc.demo.ranks import DemoRanks, RankPlace
from softmrc_bench.allreduce import _gloos, _ours
from softmrc_bench.flood import flood
from softmrc_bench.handshake_flood import handshakes
from softmrc_bench.ranks import BenchRanks
from softmrc_bench.sim import _apart
from softmrc_bench.udp import sink

pytestmark = pytest.mark.process  # real processes: what a child imports is what is tested
SOURCES = Path(__file__).parents[2] / "src" / "softmrc"
# Names that a child of ours imports before it could know better.
POISON = ("softmrc", "json", "torch", "numpy", "multiprocessing", "pickle", "struct", "socket", "subprocess")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: an import of a module from here leaves its name in `touched`."""
    here = tmp_path / "hostile"
    here.mkdir()
    for module in POISON:
        line = f"open({str(here / 'touched')!r}, 'a').write({module + chr(10)!r})\nraise SystemExit(66)\n"
        (here / f"{module}.py").write_text(line)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.chdir(here)
    return here


def touched(folder: Path) -> list[str]:
    file = folder / "touched"
    return sorted(set(file.read_text().split())) if file.exists() else []


def test_the_folder_is_poisonous(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "softmrc_bench.receiver"], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 66 and touched(folder)


def bench_sink(_: Path) -> None:
    with sink() as other:
        other.send(do="leave")


def bench_flood(_: Path) -> None:
    with flood([("127.0.0.1", 9)], per_s=1):
        pass


def bench_handshake_flood(_: Path) -> None:
    with handshakes(9, per_s=1):
        pass


def bench_sim(_: Path) -> None:
    assert _apart("speed", "A")


def bench_ranks(store: Path) -> None:
    with BenchRanks(_ours(str(store), 2, ["127.0.0.1"])):
        pass


def gloo_ranks(store: Path) -> None:
    pytest.importorskip("torch")
    with BenchRanks(_gloos(str(store), 2)):
        pass


def demo_ranks(_: Path) -> None:
    pytest.importorskip("torch")
    with DemoRanks([RankPlace({})], {}) as ranks:
        ranks._workers[0].process.stdin.close()  # type: ignore[union-attr]
        ranks._workers[0].process.wait(60)


@pytest.mark.parametrize(
    "start", [bench_sink, bench_flood, bench_handshake_flood, bench_sim, bench_ranks, gloo_ranks, demo_ranks]
)
def test_children_import_nothing_from_the_folder(start: Callable[[Path], None], folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    start(store)
    assert not touched(folder)


def test_a_sweep_imports_nothing_from_the_folder(folder: Path, tmp_path: Path) -> None:
    """As it is installed: a script in another folder, whose workers multiprocessing starts."""
    script = tmp_path / "softmrc"
    script.write_text("from softmrc.cli import main\nif __name__ == '__main__':\n    main()\n")
    scenario = SOURCES.parents[1] / "scenarios" / "slow-link.toml"
    vary = ["--vary", "run.seed=1,2", "--workers", "2", "--json"]
    command = [sys.executable, str(script), "sweep", str(scenario), *vary]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert not touched(folder)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 2, done.stderr
    assert "PYTHONSAFEPATH" not in os.environ


def test_every_child_is_started_in_the_same_way() -> None:
    starters = {path.name: path.read_text() for path in SOURCES.rglob("*.py") if "sys.executable" in path.read_text()}
    assert set(starters) == {"subprocesses.py", "namespaces.py"}
    assert '[sys.executable, "-P", __file__,' in starters["namespaces.py"]  # the demo's own process, started again
    assert python_command("softmrc_bench.soak", "1")[1:] == ["-P", "-m", "softmrc_bench.soak", "1"]
