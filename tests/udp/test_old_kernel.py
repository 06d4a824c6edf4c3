"""A kernel, or a container, without the newest calls: devices still sleep, wake in time and move data."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

# Has the kernel answer epoll_pwait2 (number 441 everywhere) with an error, for this process and for good.
FILTER = """
import ctypes, struct

def forbid(number, error):
    load, equal, give = 0x20, 0x15, 0x06
    steps = [(load, 0, 0, 0), (equal, 0, 1, number), (give, 0, 0, 0x00050000 | error), (give, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
    assert libc.syscall(number, -1, 0, 1, 0, 0, 0) == -1 and ctypes.get_errno() == error
"""
EXCHANGE = """
import sys, threading, time
from softmrc.connection import connect, listen

forbid(441, int(sys.argv[1]))
with listen(memory=bytearray(1 << 20), planes=["127.0.0.1", "127.0.0.2"]) as listener:
    accepted = []
    thread = threading.Thread(target=lambda: accepted.append(listener.accept(20)))
    thread.start()
    with connect("127.0.0.1", listener.port, planes=["127.0.0.1", "127.0.0.2"]) as a:
        thread.join()
        with accepted[0] as b:
            for i in range(200):
                a.write(a.remote[0], 0, bytes([i]) * 100_000, imm=i)
                assert b.recv(20).imm == i
            a.device.set_faults(drop=0.05)  # so that timers matter
            for i in range(50):
                a.write(a.remote[0], 0, bytes(100_000))
            before = a.device.stats()["turns"]
            time.sleep(0.5)
            print("idle turns", a.device.stats()["turns"] - before)
"""


@pytest.mark.parametrize("error", [38, 1], ids=["unknown", "forbidden"])
def test_without_epoll_pwait2(error: int) -> None:
    command = [sys.executable, "-c", FILTER + EXCHANGE, str(error)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "AssertionError" in done.stderr and "prctl" in done.stderr:
        pytest.skip("no seccomp filters here")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 5_000, "who cannot sleep spins"
