"""Every command once as a user starts it: a separate process, from its first import to its exit status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from in_process import COMMAND

ROOT = Path(__file__).resolve().parents[2]
FABRIC, SCENARIO = str(ROOT / "examples" / "lab.toml"), str(ROOT / "scenarios" / "slow-link.toml")
# What is cheap is done, with something that its output has; of the others the help is read.
DONE: dict[str, tuple[list[str], str]] = {
    "info": ([], "Python"),
    "examples": (["ddp.py"], "torch"),
    "sim": ([SCENARIO, "--set", "workload.message_bytes=10_000", "--only", "MRC", "--json"], "fct_max_us"),
    "plan": (["--gpus", "64"], "64 GPUs"),
    "assess": ([FABRIC, "--trials", "1", "--json"], "diversity"),
    "study": (["study", "--json"], "designs"),
    "fabric": (["routes", FABRIC, "--from", "host0", "--to", "host7"], "ev 0"),
    "mapper": (["sim", FABRIC, "--duration", "0.2"], "nothing is broken"),
    "nccl-plugin": ([], "libnccl-net-softmrc.so"),
}


# Real processes: that each command starts as one is what is tested.
@pytest.mark.process
@pytest.mark.parametrize("name", list(COMMAND.commands))  # type: ignore[attr-defined]
def test_a_command_starts_and_ends_well(name: str, tmp_path: Path) -> None:
    words, said = DONE.get(name, (["--help"], f"Usage: softmrc {name} "))
    command = [sys.executable, "-P", "-m", "softmrc", name, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "") and said in done.stdout, done
    assert not any(tmp_path.iterdir())
