"""Fixed ports of tests: to one process each, and on machines whose kernel gives out all ports, too."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import ports


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by another process that looks in the same order."""
    monkeypatch.setattr(ports, "_calls", itertools.count())
    monkeypatch.setattr(ports, "_marks", [])
    monkeypatch.setattr(ports, "_start", 0)


@pytest.mark.parametrize("kernels", [range(1024, 65_536), range(10_000, 65_530), range(32_768, 61_000)])
def test_there_are_ports_whatever_the_kernel_gives_out(kernels: range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_ephemeral", lambda: kernels)
    first = ports.free_ports(ports.STRIDE)
    row = range(first, first + ports.STRIDE)
    if kernels.start == 32_768:
        assert not set(row) & set(kernels)
    for port in row:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.bind(("", port))


def test_a_row_that_the_kernels_range_lies_within_is_not_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_ephemeral", lambda: range(ports.BASE + 3, ports.BASE + 5))
    assert ports.BASE not in ports._rows() and ports.BASE + ports.STRIDE in ports._rows()


def test_no_two_processes_are_given_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ports.free_ports()
    folder = str(Path(ports.__file__).parent)
    code = (
        f"import itertools, sys; sys.path.insert(0, {folder!r}); import ports; ports._start = 0;"
        "print(ports.free_ports()); ports._calls = itertools.count(); print(ports.free_ports())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    given = [first, *map(int, done.stdout.split())]
    assert len(set(given)) == 3
    monkeypatch.setattr(ports, "_calls", itertools.count())
    assert ports.free_ports() not in given[:1]
