"""A handshake takes the first way that answers, and what never answers over UDP is named. Needs root for the links."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import ipaddress
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import needs
from softmrc import _core
from softmrc._core import DialCandidate, HandshakeEvent
from softmrc.config.planes import LocalPlane, resolve
from softmrc.connection import connect, connect_async, listen, path_check
from softmrc.connection.dial import dial_candidates
from softmrc.connection.waiting import AsyncWait, BlockingWait, Wait, run_blocking
from softmrc.device import Peer, PeerPlane
from softmrc.errors import DeviceError, RemoteError
from softmrc_bench.black_hole import BlackHole
from softmrc_bench.veth import VethPair, address_of, link_of, planes_of, veth_planes


@contextmanager
def deaf() -> Iterator[tuple[str, int]]:
    """An address that takes no connection and says nothing: its queue of callers is full."""
    with contextlib.ExitStack() as stack:
        door = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(door.getsockname())
        yield door.getsockname()


def ways_of(*addresses: tuple[str, int]) -> list[DialCandidate]:
    return [DialCandidate(socket.inet_aton(host), port) for host, port in addresses]


async def reached(ways: list[DialCandidate], wait: Wait, limit_s: float) -> _core.Connector:
    native, until = _core.Connector(ways, _core.Credentials.none()), time.monotonic() + limit_s
    while native.poll() is HandshakeEvent.NONE and not native.is_connected:
        if (left_s := until - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        due_s = native.due_s()
        await wait.readable(native.fileno(), left_s if due_s is None else min(due_s, left_s))
    return native


def in_a_thread(ways: list[DialCandidate], limit_s: float = 20.0) -> _core.Connector:
    return run_blocking(reached(ways, BlockingWait(), limit_s))


def in_a_task(ways: list[DialCandidate], limit_s: float = 20.0) -> _core.Connector:
    async def dial() -> _core.Connector:
        return await reached(ways, AsyncWait(), limit_s)

    return asyncio.run(dial())


def port_of(server: socket.socket) -> str:
    return f"127.0.0.1 port {server.getsockname()[1]}"


@pytest.mark.parametrize("dial", [in_a_thread, in_a_task])
def test_a_way_that_is_dead_is_not_waited_for(dial: Any) -> None:
    with deaf() as dead, deaf() as other, socket.create_server(("127.0.0.1", 0)) as alive:
        assert dial(ways_of(dead, other, alive.getsockname(), dead)).peer == port_of(alive)


@pytest.mark.parametrize("dial", [in_a_thread, in_a_task])
def test_the_first_way_wins_where_it_answers(dial: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        assert dial(ways_of(first.getsockname(), second.getsockname())).peer == port_of(first)
        second.setblocking(False)
        with pytest.raises(BlockingIOError):
            second.accept()


@pytest.mark.parametrize("dial", [in_a_thread, in_a_task])
def test_a_refusal_is_an_answer(dial: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nobody = gone.getsockname()
    with pytest.raises(ConnectionRefusedError):
        dial(ways_of(nobody, nobody, nobody))
    with socket.create_server(("127.0.0.1", 0)) as alive:
        assert dial(ways_of(nobody, alive.getsockname())).peer == port_of(alive)


@pytest.mark.parametrize("dial", [in_a_thread, in_a_task])
def test_nothing_is_left_open_when_the_time_is_up(dial: Any) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with deaf() as dead, pytest.raises(TimeoutError):
        dial(ways_of(dead, dead), 0.3)
    gc.collect()  # of the task
    assert len(os.listdir("/proc/self/fd")) <= before  # other tests may have left some that are closed since


def test_the_kernels_way_goes_first_and_each_plane_has_one() -> None:
    found = socket.getaddrinfo("10.77.0.2", 7000, type=socket.SOCK_STREAM)
    loopback = [resolve("127.0.0.1")]
    assert {way.interface for way in dial_candidates(found, loopback, [])} == {""}
    assert dial_candidates(found, [], [])[0] == DialCandidate(bytes([10, 77, 0, 2]), 7000)


def test_several_addresses_are_one_host() -> None:
    with listen(memory=bytearray(8)) as listener, connect("127.9.9.9,127.0.0.1", listener.port) as connection:
        assert connection.remote


def test_a_listener_is_reachable_at_all_its_planes() -> None:
    planes = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    with listen("127.0.0.2", planes=planes, memory=bytearray(8)) as listener:
        for address in planes:
            with connect(address, listener.port, planes=planes) as connection, listener.accept(20) as other:
                connection.write(connection.remote[0], 0, b"x", imm=5)
                assert other.recv(20).imm == 5
        with pytest.raises(RemoteError, match="refused"):
            connect("127.0.0.4", listener.port, planes=planes)
        with listen("127.0.0.1", planes=planes[:1]) as elsewhere, pytest.raises(RemoteError):
            connect("127.0.0.2", elsewhere.port, planes=planes[:1])


def test_without_a_secret_a_listener_is_at_no_plane_that_leaves_the_machine() -> None:
    """Where only its first plane is on loopback: a host that reaches the other would count as one of this machine."""
    found = (ipaddress.ip_address(address) for _, address, _ in _core.local_addresses() if len(address) == 4)
    outside = next((address for address in found if not address.is_loopback), None)
    if outside is None:
        pytest.skip("no interface but loopback has an address")
    planes = ["127.0.0.1", str(outside)]
    for secret, refused in ((None, True), ("of the ways", False)):
        with listen(planes=planes, secret=secret) as listener, socket.socket() as caller:
            is_refused = caller.connect_ex((planes[1], listener.port)) == errno.ECONNREFUSED
            assert is_refused is refused


# What a program in a namespace does; words of an error are its last line.
LISTEN = """
import json, sys
from softmrc.connection import listen
host, planes, is_deaf = json.loads(sys.argv[1])
with listen(host, 7000, planes=planes, memory=bytearray(64), secret="of the ways") as listener:
    listener.device.set_faults(black_hole=is_deaf)
    print("open", flush=True)
    with listener.accept(60) as connection:
        print(connection.recv(60).imm, flush=True)
"""
CONNECT = """
import json, logging, sys, time
from softmrc.connection import connect
from softmrc.errors import MrcError
logging.basicConfig(format="%(levelname)s %(message)s")
host, planes = json.loads(sys.argv[1])
start = time.monotonic()
try:
    with connect(host, 7000, planes=planes, secret="of the ways") as connection:
        print("connected", flush=True)
        connection.write(connection.remote[0], 0, b"x", imm=9)
        print("written", flush=True)
except MrcError as error:
    print(error)
print(round(time.monotonic() - start, 2))
"""


def program(lab: VethPair, side: int, text: str, *arguments: Any) -> list[str]:
    return ["ip", "netns", "exec", lab.names[side], sys.executable, "-c", text, json.dumps(arguments)]


@contextmanager
def black_hole(lab: VethPair, plane: int) -> Iterator[None]:
    """The cable is in, its link is up, and nothing comes through: neither end can see it."""
    try:
        plug = BlackHole([(lab.names[side], link_of(side, plane)) for side in (0, 1)])
    except DeviceError as error:
        pytest.skip(f"no switchable black hole here: {error}")
    plug.set(True)
    yield
    plug.close()


@contextmanager
def listening(lab: VethPair, planes: list[str], is_deaf: bool = False) -> Iterator[subprocess.Popen[str]]:
    command = program(lab, 1, LISTEN, address_of(1, 0), planes, is_deaf)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == "open\n"
            yield server
        finally:
            server.kill()


def connected(lab: VethPair, host: str, planes: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(program(lab, 0, CONNECT, host, planes), capture_output=True, text=True, timeout=60)


@needs.in_namespaces
@pytest.mark.parametrize("dead", [0, 1])
@pytest.mark.parametrize("names", ["one address", "all addresses"])
def test_one_dead_cable_does_not_stop_a_connection_from_being_made(dead: int, names: str) -> None:
    host = address_of(1, 0) if names == "one address" else f"{address_of(1, 0)},{address_of(1, 1)}"
    with veth_planes(2) as lab, listening(lab, planes_of(1, 2)) as server, black_hole(lab, dead):
        done = connected(lab, host, planes_of(0, 2))
        assert "written" in done.stdout, done
        assert server.stdout is not None and server.stdout.readline() == "9\n"
        warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
        assert len(warnings) == 1 and f"plane {dead} (10.77.{dead}.1" in warnings[0], done.stderr


@pytest.mark.slow
@needs.in_namespaces
def test_a_peer_that_is_never_reached_is_told_from_one_that_is_lost() -> None:
    with veth_planes(2) as lab, listening(lab, planes_of(1, 2), is_deaf=True):
        done = connected(lab, address_of(1, 0), planes_of(0, 2))
        assert "connected" not in done.stdout, done
        assert "answers TCP, and was never reached" in done.stdout and "firewalls" in done.stdout
        assert re.search(r"plane 0 \(10\.77\.0\.1%p0a → 10\.77\.0\.2 UDP port \d+\), plane 1", done.stdout)


@pytest.mark.slow
@needs.in_namespaces
def test_planes_in_another_order_are_recognised() -> None:
    with veth_planes(2) as lab, listening(lab, planes_of(1, 2)[::-1]):
        done = connected(lab, address_of(1, 0), planes_of(0, 2))
        assert "its plane 1 is in the network of this side's plane 0: list them in the same order" in done.stdout, done


def test_a_plane_in_another_network_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        path_check, "network_of", lambda address, link: ipaddress.ip_network(f"{address}/24", strict=False)
    )
    here = [LocalPlane(ipaddress.ip_address(one), "", "eth0", 1500) for one in ("10.0.0.1", "10.0.1.1")]
    there = [PeerPlane(ipaddress.ip_address(one), 7) for one in ("10.0.0.2", "10.9.1.2")]
    device: Any = SimpleNamespace(local_planes=here)
    assert "10.9.1.2 is not in 10.0.1.0/24" in path_check._advice(device, Peer(1, tuple(there)), [1])
    assert "firewalls" in path_check._advice(device, Peer(1, tuple(there)), [0])
    assert "the same order" in path_check._advice(device, Peer(1, tuple(there[::-1])), [0, 1])


def test_a_peer_that_is_lost_later_has_stopped_answering() -> None:
    soon = {"timeout": 10, "retry_linear": 2, "retry_exponential": 1}
    with (
        listen(memory=bytearray(64), **soon) as listener,
        connect("127.0.0.1", listener.port, **soon) as connection,
        listener.accept(20) as other,
    ):
        connection.write(connection.remote[0], 0, b"x")
        other.device.set_faults(black_hole=True)
        with pytest.raises(RemoteError, match="stopped answering"):
            connection.write(connection.remote[0], 0, b"x")


def test_what_was_never_heard_is_said_by_the_listener_too() -> None:
    """It does not wait at accept; its writes report it."""
    soon = {"timeout": 10, "retry_linear": 2, "retry_exponential": 1}
    words: list[str] = []
    with listen(memory=bytearray(64), **soon) as listener:
        listener.device.set_faults(black_hole=True)
        failures: list[BaseException] = []

        def call() -> None:
            try:
                connect("127.0.0.1", listener.port, memory=bytearray(64), **soon).close()
            except RemoteError as error:
                failures.append(error)

        caller = threading.Thread(target=call)
        caller.start()
        with listener.accept(20) as connection:
            try:
                connection.write(connection.remote[0], 0, b"x")
            except RemoteError as error:
                words.append(str(error))
            caller.join(30)
    assert "never reached" in str(failures[0]) and "never reached" in words[0]


def test_async_says_the_same() -> None:
    async def call(port: int) -> None:
        async with asyncio.timeout(30):
            await connect_async("127.0.0.1", port)

    with listen(memory=bytearray(64)) as listener:
        listener.device.set_faults(black_hole=True)
        with pytest.raises(RemoteError, match="was never reached"):
            asyncio.run(call(listener.port))
