"""Who drives a lane, and when it sleeps: the classes by themselves, with threads, and under a race detector."""

import os
import subprocess

import pytest

import programs


@pytest.mark.parametrize("program", ["leader_follower", "leader_follower_thread"])
def test_turns_are_taken_and_sleep_ends(program: str) -> None:
    if program == "leader_follower_thread" and not programs.path("leader_follower").with_name(program).exists():
        pytest.skip("this compiler has no race detector, or another sanitizer is on")
    alone = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # another sanitizer, maybe
    ran = subprocess.run([programs.path(program)], env=alone, capture_output=True, text=True, timeout=300, check=False)
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("the race detector does not run on this kernel")
    assert ran.returncode == 0 and "all holds" in ran.stdout, ran.stdout + ran.stderr
