"""Closing: what arrived is acknowledged even after it, memory is the caller's at once, and peers are notified."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from loopback import FOUR, connect, drain, eventually, pair
from test_connection import connected

from softmrc.device import Device, PeerPlane, QueuePair, shutdown
from softmrc.engine import CompletionStatus, QpState
from softmrc.errors import RemoteError

pytestmark = pytest.mark.process

# README's two programs; the first tells its port, and FAULTS stands for what is done to its device.
RECEIVER = """
from softmrc.connection import connect, listen

with listen("127.0.0.1", 0, memory=bytearray(1 << 20)) as listener:
    print(listener.port, flush=True)
    FAULTS
    print(listener.accept().recv())
"""
SENDER = """
import sys
from softmrc.connection import connect, listen

with connect("127.0.0.1", int(sys.argv[1])) as connection:
    connection.write(connection.remote[0], 0, b"hello", imm=1)
"""
LOSS = "listener.device.set_faults(drop=0.05)"


def both(receiver: str, sender: str) -> tuple[str, str]:
    """What the two programs said, and complained about."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # a program of one thread may fork under every sanitizer
    first = subprocess.Popen([sys.executable, "-c", receiver], text=True, env=env, **pipes)
    assert first.stdout is not None
    port = first.stdout.readline().strip()
    second = subprocess.run([sys.executable, "-c", sender, port], capture_output=True, text=True, timeout=60)
    said, complained = first.communicate(timeout=60)
    return said, complained + second.stderr


@pytest.mark.parametrize("faults", ["pass", LOSS])
def test_the_readmes_programs(faults: str) -> None:
    for _ in range(6):
        said, complained = both(RECEIVER.replace("FAULTS", faults), SENDER)
        assert (said, complained) == ("Message(imm=1, length=5)\n", "")


def test_a_program_that_closes_nothing() -> None:
    """Neither a with-block nor a close: the interpreter's end does it."""
    receiver = RECEIVER.replace("FAULTS", LOSS).replace("with listen", "listener = listen").replace(" as listener:", "")
    receiver = "\n".join(line.strip() for line in receiver.splitlines())
    sender = SENDER.replace("with connect", "connection = connect").replace(" as connection:", "")
    sender = "\n".join(line.strip() for line in sender.splitlines())
    for _ in range(4):
        assert both(receiver, sender) == ("Message(imm=1, length=5)\n", "")


POSTER = """
import sys
from softmrc.connection import connect

def post():
    connection = connect("127.0.0.1", int(sys.argv[1]))
    for number in range(20):
        connection.post(connection.remote[0], 0, bytes(1 << 20), imm=number)
    return connection

END
"""


@pytest.mark.parametrize("end", ["kept = post()", "post()", "post(); import gc; gc.collect()"])
def test_what_was_posted_arrives_though_the_program_ends(end: str) -> None:
    """Kept until the end, or forgotten at once."""
    receiver = RECEIVER.replace("FAULTS", "connection = listener.accept()")
    receiver = receiver.replace("print(listener.accept().recv())", "print([connection.recv().imm for _ in range(20)])")
    assert both(receiver, POSTER.replace("END", end)) == (f"{list(range(20))}\n", "")


@contextmanager
def owing() -> Iterator[tuple[QueuePair, QueuePair]]:
    """a's write has arrived at b, whose acknowledgement was dropped by hand."""
    with pair(FOUR) as (a, b):
        region = b.device.register(bytearray(64), remote_write=True)
        source = a.device.register(bytearray(b"hello"))
        b.post_recv()
        assert eventually(lambda: a.query()["data_ports"] == 0b1111)
        received = sum(row["packets_received"] for row in a.device.planes())
        a.device.set_faults(delay_us=20_000)  # it leaves when a has become deaf
        a.post_write(source, 0, 5, remote_va=0, rkey=region.rkey, imm=1)
        a.device.set_faults(black_hole=True)
        assert drain(b.recv_cq, 1)[0].ok
        assert eventually(lambda: b.stats()["acks_sent"] > 0)
        assert eventually(lambda: sum(row["packets_received"] for row in a.device.planes()) > received)
        yield a, b


def leave_by_close(b: QueuePair) -> None:
    b.device.close()


def leave_by_destroying(b: QueuePair) -> None:
    b.destroy()


@pytest.mark.parametrize("leave", [leave_by_close, leave_by_destroying])
def test_the_last_acknowledgement_is_lost(leave: Any) -> None:
    with owing() as (a, b):
        leave(b)
        a.device.set_faults()
        assert [c.status for c in drain(a.send_cq, 1)] == [CompletionStatus.SUCCESS]


def test_the_last_acknowledgement_is_said_again_to_a_peer_that_cannot_ask() -> None:
    """As one that gets no processor until the other is gone."""
    with owing() as (a, b):
        a.device.set_faults(delay_us=10_000_000)  # it hears, and what it asks leaves too late
        leave_by_close(b)
        assert [c.status for c in drain(a.send_cq, 1)] == [CompletionStatus.SUCCESS]


def test_a_device_that_is_merely_forgotten_leaves_in_the_same_way() -> None:
    def meet(a: Device) -> QueuePair:
        b = Device(["127.0.0.1"])
        near, far = connect(a, b)
        region = b.register(bytearray(64), remote_write=True)
        far.post_recv()
        near.post_write(a.register(bytearray(b"hello")), 0, 5, remote_va=0, rkey=region.rkey, imm=1)
        assert drain(far.recv_cq, 1)[0].ok
        return near

    with Device(["127.0.0.1"]) as a:
        near = meet(a)
        gc.collect()
        assert [c.status for c in drain(near.send_cq, 1)] == [CompletionStatus.SUCCESS]


def test_what_was_posted_and_not_waited_for_arrives() -> None:
    with connected(1 << 20, planes=list(FOUR)) as (a, b, memory):
        a.device.set_faults(drop=0.05)
        for i in range(64):
            a.post(a.remote[0], i * 4096, bytes([i]) * 4096, imm=i)
        a.close()
        assert [b.recv(10).imm for _ in range(64)] == list(range(64))
        with pytest.raises(RemoteError, match="has left"):
            b.recv(10)
        assert memory[: 64 * 4096] == b"".join(bytes([i]) * 4096 for i in range(64))


def test_after_closing_nothing_lands_and_whoever_writes_is_told() -> None:
    """By the device that it writes to, while that says goodbye: it does not have to guess from silence."""
    memory = bytearray(1 << 20)
    with pair(("127.0.0.1",)) as (a, b):
        region, source = b.device.register(memory, remote_write=True), a.device.register(os.urandom(1 << 20))
        ends: list[CompletionStatus] = []

        def write_on() -> None:
            while not ends or ends[-1] == CompletionStatus.SUCCESS:
                a.post_write(source, 0, 1 << 20, remote_va=0, rkey=region.rkey)
                ends.append(drain(a.send_cq, 1)[0].status)

        thread = threading.Thread(target=write_on)
        thread.start()
        assert eventually(lambda: b.stats()["packets_placed"] > 1000)
        b.device.close()
        memory[:] = bytes(len(memory))  # it is ours again
        thread.join(20)
        assert ends[-1] == CompletionStatus.PEER_ERROR
        assert not any(memory)


def test_a_peer_that_left_is_believed_by_who_receives_and_by_who_sends() -> None:
    with connected() as (a, b, _):
        b.close()
        with pytest.raises(RemoteError, match="has left"):
            a.write(a.remote[0], 0, b"x")
        with pytest.raises(RemoteError, match="has left"):
            a.recv(10)


def test_a_fixed_port_is_free_again_at_once() -> None:
    with Device(["127.0.0.1"]) as other:
        first = Device(["127.0.0.1"], port=0)
        port = first.ports_of(0)[0][0]
        connect(other, first)
        first.close()
        with Device(["127.0.0.1"], port=port):
            pass


def test_a_device_that_nobody_knew_is_over_at_once_and_the_others_soon() -> None:
    with Device(["127.0.0.1"]) as device:
        pass
    assert eventually(lambda: device._native.is_over)
    with pair(("127.0.0.1",)) as (a, b):
        pass
    assert eventually(lambda: a.device._native.is_over and b.device._native.is_over)
    shutdown.wait()
    assert not shutdown._leaving


def test_closing_twice_and_using_what_is_closed() -> None:
    with pair(("127.0.0.1",)) as (a, b):
        b.device.close()
        b.device.close()
        assert repr(b) == f"<QueuePair {b.qpn:#x}, destroyed>" and repr(b.device) == "<Device, closed>"
        b.destroy()
        assert a.state == QpState.RTS


VICTIM = """
import ipaddress, json, os, signal, sys
from softmrc.device import Device, PeerPlane

device = Device(json.loads(sys.argv[1]))
qp = device.create_qp(device.create_cq())
region = device.register(bytearray(1 << 20), remote_write=True)
planes = [[str(plane.address), ports] for plane, ports in zip(device.local_planes, device.ports_of(0))]
print(json.dumps({"planes": planes, "qpn": qp.qpn, "psn": qp.first_psn, "rkey": region.rkey}), flush=True)
its = json.loads(sys.stdin.readline())
planes = [PeerPlane(ipaddress.ip_address(address), ports[0], tuple(ports)) for address, ports in its["planes"]]
qp.init()
qp.rtr(device.add_peer(planes), dest_qpn=its["qpn"], first_psn=its["psn"])
qp.rts()
if sys.argv[2:] and os.fork() == 0:  # a worker, as data loaders have them
    signal.pause()
print("ready", os.getpid(), flush=True)
sys.stdin.readline()
"""


@contextmanager
def victim(planes: list[str], *more: str) -> Iterator[tuple[QueuePair, int, subprocess.Popen[str]]]:
    """A queue pair to another process, the key of its memory, and that process."""
    command = [sys.executable, "-c", VICTIM, json.dumps(planes), *more]
    with (
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process,
        Device(planes) as device,
    ):
        assert process.stdin is not None and process.stdout is not None
        try:
            its = json.loads(process.stdout.readline())
            qp = device.create_qp(device.create_cq())
            mine = [[str(plane.address), list(plane.source_ports)] for plane in device.reached_at(0)]
            process.stdin.write(json.dumps({"planes": mine, "qpn": qp.qpn, "psn": qp.first_psn}) + "\n")
            process.stdin.flush()
            process.stdout.readline()
            theirs = [
                PeerPlane(plane.address, ports[0], tuple(ports))
                for plane, (_, ports) in zip(device.local_planes, its["planes"], strict=True)
            ]
            qp.init()
            qp.rtr(device.add_peer(theirs), dest_qpn=its["qpn"], first_psn=its["psn"])
            qp.rts()
            yield qp, its["rkey"], process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("has_worker", [False, True])
@pytest.mark.parametrize("planes", [["127.0.0.1"], list(FOUR), ["::1"]])
def test_a_process_that_is_killed_is_missed_long_before_its_timers_run_out(planes: list[str], has_worker: bool) -> None:
    """Even if a worker that it forked lives on."""
    with victim(planes, *(["worker"] if has_worker else [])) as (qp, rkey, process):
        source = qp.device.register(bytearray(1 << 20))
        qp.post_write(source, 0, 1 << 20, remote_va=0, rkey=rkey)
        assert drain(qp.send_cq, 1)[0].ok
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        qp.post_write(source, 0, 1 << 20, remote_va=0, rkey=rkey)
        assert drain(qp.send_cq, 1)[0].status == CompletionStatus.RETRY_EXCEEDED
        assert qp.stats()["timeouts"] < qp.device.config.retry_linear + qp.device.config.retry_exponential
        assert qp.device.stats()["unreachable_reports"] > 0


def test_a_plane_that_swallows_everything_swallows_the_report_too() -> None:
    """Timeouts alone where nothing answers: the peer lives, and all planes are silent for longer than the suspicion."""
    with pair(("127.0.0.1",), rts={"timeout": 14, "retry_linear": 7, "retry_exponential": 5}) as (a, b):
        region = b.device.register(bytearray(64), remote_write=True)
        source = a.device.register(bytearray(64))
        for device in (a.device, b.device):
            device.set_faults(black_hole=True)
        a.post_write(source, 0, 64, remote_va=0, rkey=region.rkey)
        assert drain(a.send_cq, 1, limit_s=0.6) == []
        for device in (a.device, b.device):
            device.set_faults()
        assert drain(a.send_cq, 1)[0].ok


FORKING = """
import multiprocessing
from softmrc.connection import listen

def receive() -> None:
    with listen(memory=bytearray(64)) as listener:
        print(listener.port, flush=True)
        listener.device.set_faults(drop=0.3)
        print(listener.accept(20).recv(20), flush=True)

worker = multiprocessing.get_context("fork").Process(target=receive)
worker.start()
worker.join()
"""


def test_a_forked_worker_stays_until_it_has_answered() -> None:
    """It ends without the interpreter's exit, and so without what is registered there."""
    for _ in range(3):
        assert both(FORKING, SENDER) == ("Message(imm=1, length=5)\n", "")


GARBAGE = """
    import gc, os

    os.register_at_fork(after_in_child=gc.collect)  # as any allocation may, before other handlers of the fork run
    from softmrc.device import Device

    gc.disable()
    device = Device(["127.0.0.1"])
    device.itself = device
    device.close()
    del device
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_child_frees_no_device_that_was_garbage_when_it_was_forked() -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(GARBAGE)], check=True, timeout=60)
