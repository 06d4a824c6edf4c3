"""SIGTERM that finds a finalizer: Python reports what its handler raises there, and goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import gc, os, signal, sys, threading, time
from softmrc.cli.signals import Terminated, terminable

def term(*_):
    os.kill(os.getpid(), signal.SIGTERM)

class Dropped:
    def __del__(self):
        try:
            term()
        finally:
            time.sleep(0.05)

{what}
try:
    with terminable():
        try:
            act()
            time.sleep(60)
        finally:
            term()  # disturbs nothing
            for _ in range(100):
                time.sleep(0.001)
except Terminated:
    sys.exit(8)
"""
ENDS = {
    "no finalizer": "act = term",
    "a finalizer": "act = Dropped",
    "as a finalizer begins": "class Dropped:\n    __del__ = term\nact = Dropped",
    "a callback of the collector": "gc.callbacks.append(lambda *_: (gc.callbacks.clear(), term()))\nact = gc.collect",
    "finalizers one after another": "def act():\n    for _ in range(3):\n        Dropped()",
    "a weak reference": "import weakref\nclass A: pass\ndef act():\n    a = A()\n    b = weakref.ref(a, term)",
}


@pytest.mark.parametrize("what", ENDS)
def test_sigterm_ends_a_command_whatever_it_finds(what: str) -> None:
    program = PROGRAM.format(what=ENDS[what])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (8, ""), done


def test_other_errors_of_a_finalizer_are_left_to_python() -> None:
    what = "class Bad:\n    def __del__(self):\n        raise ValueError(5)\ndef act():\n    Bad()\n    term()"
    program = PROGRAM.format(what=what)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 8 and "ValueError: 5" in done.stderr, done
