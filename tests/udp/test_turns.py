"""Who drives a lane, and when it sleeps: the classes by themselves, with threads, and under a race detector."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).parent / "native" / "turns.cpp"
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize("sanitizer", ["", "thread"])
def test_turns_are_taken_and_sleep_ends(tmp_path: Path, sanitizer: str) -> None:
    program = tmp_path / "turns"
    flags = [f"-fsanitize={sanitizer}"] if sanitizer else []
    command = [str(COMPILER), "-std=c++20", "-O1", "-g", "-pthread", f"-I{ROOT / 'core'}", *flags]
    built = subprocess.run([*command, str(SOURCE), "-o", str(program)], capture_output=True, text=True, check=False)
    if sanitizer and built.returncode:
        pytest.skip(f"this compiler has no {sanitizer} sanitizer")
    assert built.returncode == 0, built.stderr
    alone = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # another sanitizer, maybe
    ran = subprocess.run([str(program)], env=alone, capture_output=True, text=True, timeout=120, check=False)
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("the sanitizer does not run on this kernel")
    assert ran.returncode == 0 and "all holds" in ran.stdout, ran.stdout + ran.stderr
