"""A handshake finds its way through a fabric whatever single cable is dead and does not show it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import needs
from softmrc.fabric import host as fabric_host
from softmrc.lab import Lab

pytestmark = [*needs.LAB, needs.BPF]
SOFTMRC = [sys.executable, "-P", "-c", "from softmrc.cli import main; main()"]


def inside(lab: Lab, host: int, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """A command as `softmrc lab exec` runs it."""
    told = {fabric_host.FILE: str(lab.record.file), fabric_host.NUMBER: str(host), "SOFTMRC_SECRET": "of the lab"}
    namespace = lab.namespace(lab.shape.parse_node(f"host{host}"))
    return ["ip", "netns", "exec", namespace, *SOFTMRC, *arguments], {**os.environ, **told, "COLUMNS": "120"}


@contextmanager
def serving(lab: Lab, host: int) -> Iterator[int]:
    command, env = inside(lab, host, "perf", "--host", f"host{host}", "--port", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"port (\d+)", server.stdout.readline())
            assert found
            yield int(found[1])
        finally:
            server.kill()


# The first path of the first plane goes by spine 0; the last two stand between a host and all of its first plane.
@pytest.mark.parametrize("dead", ["p0.leaf0-spine0", "p0.leaf1-spine0", "p0.host0-leaf0", "p0.host3-leaf1"])
def test_ping_through_a_black_hole(acting: Lab, dead: str) -> None:
    with serving(acting, 3) as port:
        acting.fail(dead, "blackhole")
        try:
            command, env = inside(acting, 0, "ping", f"host3:{port}", "--count", "2", "--interval", "50ms")
            done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
        finally:
            acting.heal()
    assert "paths to" in done.stdout and re.search("answers|loses", done.stdout), done  # a busy machine may drop some
    assert "silent" in done.stdout, "the dead ones are seen"
