"""A signal that comes while a finalizer runs: Python prints what its handler raises there, and goes on."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

START = """
import os, signal, sys, time
from softmrc import connect, listen
from softmrc.cli.ending import terminable
from softmrc.threads import finalizer

class Ended:
    def handle(self, *_):
        sys.exit(7)

class Dropped:
    @finalizer
    def __del__(self):
        os.kill(os.getpid(), number)

def drop():
    Dropped()

def wait():
    time.sleep(60)
    sys.exit(9)
"""
ENDS = {
    "a function": (7, "signal.signal(number, lambda *_: sys.exit(7)); drop(); wait()"),
    "a method": (7, "signal.signal(number, Ended().handle); drop(); wait()"),
    "while one waits": (7, "signal.signal(number, Ended().handle); drop(); time.sleep(60)"),
    "a command": (
        8,
        """
class Other:
    def __del__(self):
        os.kill(os.getpid(), number)
try:
    with terminable():
        Other()
        wait()
except KeyboardInterrupt:
    sys.exit(8)""",
    ),
    "a command, and a finalizer of ours": (
        8,
        """
try:
    with terminable():
        drop()
        wait()
except KeyboardInterrupt:
    sys.exit(8)""",
    ),
    "a connection": (
        7,
        """
signal.signal(number, Ended().handle)
with listen(memory=bytearray(1)) as listener:
    connection = connect("127.0.0.1", listener.port)
    listener.accept(30)
    type(connection.qp).destroy = lambda self: os.kill(os.getpid(), number)
    del connection
    wait()""",
    ),
}


def ended(number: int, what: str) -> subprocess.CompletedProcess[str]:
    program = f"{START}\nnumber = {number:d}\n{what}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("what", ENDS)
def test_what_the_handler_of_sigterm_raises_in_a_finalizer_ends_the_program(what: str) -> None:
    status, program = ENDS[what]
    done = ended(signal.SIGTERM, program)
    assert done.returncode == status, done


def test_ctrl_c_in_a_finalizer_ends_the_program() -> None:
    done = ended(signal.SIGINT, "signal.signal(number, signal.default_int_handler); drop(); wait()")
    assert done.returncode == -signal.SIGINT and "KeyboardInterrupt" in done.stderr, done


def test_other_errors_of_a_finalizer_are_left_to_python() -> None:
    done = ended(signal.SIGTERM, "class A:\n    @finalizer\n    def __del__(self):\n        raise ValueError(5)\nA()")
    assert done.returncode == 0 and "ValueError: 5" in done.stderr, done
