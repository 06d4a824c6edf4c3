"""Calls that the system refuses for a moment: a device does with less during it, and with everything afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import programs
from sanitizers import NOT_UNDER_SANITIZERS

pytestmark = [pytest.mark.process, NOT_UNDER_SANITIZERS]

START = """
import errno, sys, time
from softmrc.errors import DeviceError
from softmrc.device import Device
sys.path[:0] = sys.argv[1:]
from loopback import connect, drain, eventually
from refusing import UNTIL_ALLOWED, allow, refuse, trains_sent

LIMIT_S = 120.0

def lane_of(device):
    cq = device.create_cq()
    return device.create_qp(cq).lane
"""

THREADS = """
import socket

def free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]

for fixed in (False, True):
    settings = {"port": free_port() & ~1} if fixed else {}
    with Device(["127.0.0.1"], lanes=2, **settings) as device:
        assert lane_of(device) == 0
        refuse("pthread_create", errno.EAGAIN, times=UNTIL_ALLOWED)
        for attempt in range(3):
            assert lane_of(device) == 0, "what is open is used instead"
            try:
                device.create_qp(device.create_cq(), lane=1)
            except DeviceError as error:
                assert "thread" in str(error)
            else:
                raise AssertionError("a lane without a thread")
        assert allow("pthread_create") >= 6
        assert lane_of(device) == 1, "and the other one when there are threads again"
print("done")
"""

TRAINS = """
with Device(["127.0.0.1"], lanes=1) as a, Device(["127.0.0.1"], lanes=1) as b:
    near, far = connect(a, b)
    data = bytes(range(256)) * 4000
    source, memory = a.register(bytearray(data)), bytearray(len(data))
    target = b.register(memory, remote_write=True)

    def write():
        memory[:] = bytes(len(memory))
        near.post_write(source, 0, len(data), remote_va=0, rkey=target.rkey)
        assert [c.ok for c in drain(near.send_cq, 1, LIMIT_S)] == [True]
        assert memory == data

    def plane():
        return a.planes()[0]

    write()
    if not plane()["has_gso"]:
        print("no trains")
        sys.exit()
    assert trains_sent() > 0
    refuse("train", errno.EINVAL, times=UNTIL_ALLOWED)

    def is_cut_here():
        write()
        return not plane()["has_gso"]

    assert eventually(is_cut_here, LIMIT_S), "packets go one by one"
    refused = allow("train")
    assert sum(one.planes()[0]["gso_refused"] for one in (a, b)) == refused > 0
    before = trains_sent()

    def is_whole():
        write()
        return plane()["has_gso"] and trains_sent() > before

    assert eventually(is_whole, LIMIT_S), "trains are tried again"
print("done")
"""


@pytest.mark.parametrize("program", [THREADS, TRAINS], ids=["threads", "trains"])
def test_a_device_recovers(program: str) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(programs.path("refusals.so"))}
    here = Path(__file__).parent
    command = [sys.executable, "-c", START + program, str(here), str(here.parent / "refused")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if "no trains" in done.stdout:
        pytest.skip("this kernel cuts no trains")
    assert "done" in done.stdout
