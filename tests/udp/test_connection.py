"""The easy way: two sides find each other, and everything that should stop them does so with one clear exception."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from loopback import eventually, outcome_of

from softmrc._core import HANDSHAKE_VERSION, WIRE_VERSION
from softmrc.connection import Connection, connect, connect_async, listen
from softmrc.device import Device
from softmrc.engine import QpState
from softmrc.errors import ConfigError, DeviceError, RemoteError, UsageError


@contextmanager
def connected(memory: int = 1 << 16, **settings: Any) -> Iterator[tuple[Connection, Connection, bytearray]]:
    """(connector, acceptor, the acceptor's memory)."""
    target = bytearray(memory)
    with listen(memory=target, **settings) as listener:
        accepted: list[Connection] = []
        thread = threading.Thread(target=lambda: accepted.append(listener.accept(20)))
        thread.start()
        with connect("127.0.0.1", listener.port, **settings) as connection:
            thread.join()
            with accepted[0] as other:
                yield connection, other, target


def test_write_and_recv() -> None:
    with connected(secret="open sesame") as (a, b, memory):
        a.write(a.remote[0], 7, b"hello", imm=42)
        message = b.recv(10)
        assert (message.imm, message.length) == (42, 5)
        assert memory[7:12] == b"hello"
        assert "RTS" in repr(a) and "127.0.0.1" in repr(a)


def test_many_writes_in_flight() -> None:
    with connected(1 << 20) as (a, b, memory):
        numbers = [a.post(a.remote[0], i * 4096, bytes([i]) * 4096, imm=i) for i in range(256)]
        assert [b.recv(10).imm for _ in range(256)] == list(range(256))
        for number in numbers:
            a.wait(number, 10)
        assert memory == b"".join(bytes([i]) * 4096 for i in range(256))


def test_as_many_immediates_as_max_wimm_may_wait_and_one_more_ends_the_connection() -> None:
    with connected(max_wimm=16) as (a, b, _):
        for turn in range(2):
            for imm in range(16):
                a.write(a.remote[0], 0, b"x", imm=16 * turn + imm)
            if turn == 0:
                assert [b.recv(10).imm for _ in range(16)] == list(range(16))
        with pytest.raises(RemoteError, match="does not call recv"):
            a.write(a.remote[0], 0, b"x", imm=32)
        assert [b.recv(10).imm for _ in range(16)] == list(range(16, 32)), "what had arrived before is still good"
        with pytest.raises(RemoteError, match="in error"):
            b.recv(10)
        with pytest.raises(RemoteError, match="in error"):
            asyncio.run(asyncio.wait_for(b.recv_async(), 10))


def test_who_speaks_after_the_handshake_has_broken_it_off() -> None:
    with connected() as (a, b, _):
        a._channel.socket.sendall(b"x")
        a.close()
        with pytest.raises(RemoteError, match="has left"):
            b.recv(10)


def test_closing_under_a_thread_that_writes_is_told_as_that() -> None:
    for _ in range(20):
        with connected() as (a, _, _):
            ends: list[BaseException] = []

            def write(a: Connection = a, ends: list[BaseException] = ends) -> None:
                try:
                    while True:
                        a.write(a.remote[0], 0, b"x")
                except (UsageError, RemoteError) as error:
                    ends.append(error)

            writer = threading.Thread(target=write)
            writer.start()
            a.close()
            writer.join(20)
            assert len(ends) == 1


def test_asyncio() -> None:
    async def both(a: Connection, b: Connection) -> list[int]:
        async def receive() -> list[int]:
            return [(await b.recv_async()).imm for _ in range(20)]

        receiving = asyncio.create_task(receive())
        await asyncio.gather(*(a.write_async(a.remote[0], i, b"x", imm=i) for i in range(20)))
        return await asyncio.wait_for(receiving, 20)

    with connected() as (a, b, memory):
        assert asyncio.run(both(a, b)) == list(range(20))
        assert memory[:20] == b"x" * 20


def refused(client: dict[str, Any], server: dict[str, Any]) -> tuple[BaseException, str]:
    """What the connector raises, and why the listener says that it turned it away."""
    with listen(memory=bytearray(64), **server) as listener:
        with pytest.raises(RemoteError) as raised:
            connect("127.0.0.1", listener.port, **client).close()
        assert eventually(lambda: listener.refused.count == 1)
        with pytest.raises(TimeoutError, match="yet"):
            listener.accept(0)
        return raised.value, listener.refused.reasons[-1]


def test_wrong_secret() -> None:
    client, server = refused({"secret": "right"}, {"secret": "wrong"})
    assert "refused: the secret is not the same on both sides" in str(client)
    assert "does not know the secret" in server


def test_secret_on_one_side_only() -> None:
    none, secret = "neither a secret nor a key", "a secret"
    for given, its, ours in (
        (({}, {"secret": "something"}), none, secret),
        (({"secret": "something"}, {}), secret, none),
    ):
        client, server = refused(*given)
        assert f"your side has set {its}, its side has set {ours}: set the same secret" in str(client)
        assert f"has set {its}, this side has set {ours}: set the same secret" in server


def test_the_secret_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTMRC_SECRET", "from outside")
    with connected() as (a, b, _):
        a.write(a.remote[0], 0, b"hello", imm=1)
        assert b.recv(10).imm == 1
    assert "the secret is not the same" in str(refused({"secret": "another"}, {})[0])
    monkeypatch.setenv("SOFTMRC_SECRET", "")  # is none
    assert "has set a secret, its side has set neither a secret nor a key" in str(refused({"secret": "another"}, {})[0])
    for bad in ("", b"", 5):
        with pytest.raises(ConfigError, match="secret"):
            listen(secret=bad)  # type: ignore[arg-type]


def test_the_file_of_the_environment_sets_what_the_caller_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "softmrc.toml"
    file.write_text("[device]\nmax_wimm = 16\nmax_connections_per_address = 1\n")
    monkeypatch.setenv("SOFTMRC_CONFIG", str(file))
    for planes in (None, ["127.0.0.1"]):
        with (
            listen(planes=planes) as listener,
            connect("127.0.0.1", listener.port, planes=planes, max_wimm=8) as caller,
            listener.accept(10) as called,
        ):
            assert (called.device.config.max_wimm, caller.device.config.max_wimm) == (16, 8)
            with pytest.raises(RemoteError, match="too many connections"):
                connect("127.0.0.1", listener.port, timeout_s=2.0)


def hello(version: int = HANDSHAKE_VERSION, wire_version: int = WIRE_VERSION) -> bytes:
    """Of an end with neither a secret nor a key."""
    said = b"HSMRC" + struct.pack("!HHB", version, wire_version, 0)
    return struct.pack("!I", len(said)) + said


@pytest.mark.parametrize(
    ("other", "thing"),
    [
        ((HANDSHAKE_VERSION - 1, WIRE_VERSION), "handshake"),
        ((HANDSHAKE_VERSION + 1, WIRE_VERSION), "handshake"),
        ((HANDSHAKE_VERSION, WIRE_VERSION + 1), "packets"),
    ],
)
def test_versions_are_told_on_both_sides(other: tuple[int, int], thing: str) -> None:
    ours, theirs = (HANDSHAKE_VERSION, other[0]) if thing == "handshake" else (WIRE_VERSION, other[1])
    with listen() as listener, socket.create_connection(("127.0.0.1", listener.port)) as sock:
        sock.sendall(hello(*other))
        told = sock.recv(1 << 16).decode(errors="replace")
        assert f"this side speaks version {ours} of the {thing}, yours is {theirs}" in told
        assert eventually(lambda: listener.refused.count == 1)
        said = f"speaks version {theirs} of the {thing}, this side version {ours}"
        assert said in listener.refused.reasons[0]


def test_an_old_listener_is_told_and_blamed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        heard: list[bytes] = []

        def serve() -> None:
            with server.accept()[0] as sock:
                sock.sendall(hello(HANDSHAKE_VERSION - 1))
                while data := sock.recv(1 << 16):
                    heard.append(data)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(RemoteError, match=f"speaks version {HANDSHAKE_VERSION - 1} of the handshake, this side"):
            connect("127.0.0.1", server.getsockname()[1])
        thread.join(10)
        assert f" of the handshake, yours is {HANDSHAKE_VERSION - 1}".encode() in b"".join(heard)


def test_planes_must_match() -> None:
    client, server = refused({"planes": ["127.0.0.1"]}, {"planes": ["127.0.0.1", "127.0.0.2"]})
    assert "the connecting sides have 1 plane and 2 planes" in str(client) and "1 plane and 2 planes" in server


def test_icrc_must_match() -> None:
    client, server = refused({"icrc": False}, {"icrc": True})
    assert "ICRC" in str(client) and "ICRC" in server


def test_without_a_secret_only_loopback() -> None:
    with pytest.raises(ConfigError, match=r"a shared secret .SOFTMRC_SECRET. or a key .SOFTMRC_IDENTITY."):
        listen("0.0.0.0")
    with pytest.raises(ConfigError, match=r"a shared secret .SOFTMRC_SECRET. or a key .SOFTMRC_IDENTITY."):
        connect("10.255.255.1", 1)


def test_port_in_use() -> None:
    with listen() as listener, pytest.raises(DeviceError, match="in use"):
        listen(port=listener.port)
    with Device(["127.0.0.1"]) as device:
        taken = device.ports_of(0)[0][0]
        with pytest.raises(DeviceError, match="in use"):
            Device(["127.0.0.1"], port=taken)


def test_no_such_interface() -> None:
    for plane in ("nosuch0", "127.0.0.1%nosuch0"):
        with pytest.raises(DeviceError, match="no interface nosuch0"):
            Device([plane])


def test_nobody_listens() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        with pytest.raises(RemoteError, match="nothing listens on"):
            connect("127.0.0.1", sock.getsockname()[1])


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"220 ready\r\n", b"{}\n\n\n", b"", None])
def test_a_port_of_something_else_is_suspected(says: bytes | None) -> None:
    """It answers in its own language, hangs up, or waits for more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        is_over = threading.Event()

        def serve() -> None:
            with server.accept()[0] as sock:
                sock.recv(1 << 16)
                if says is None:
                    is_over.wait(20)
                else:
                    sock.sendall(says)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(RemoteError, match="is it something else that has this port"):
            connect("127.0.0.1", server.getsockname()[1], timeout_s=0.3 if says is None else 20)
        is_over.set()
        thread.join(20)


def test_buffer_too_small() -> None:
    with connected(64) as (a, _, memory):
        for offset, data in ((0, bytes(65)), (60, bytes(5))):
            with pytest.raises(ConfigError, match="64"):
                a.write(a.remote[0], offset, data)
        with pytest.raises(ConfigError, match=r"`offset`: .*got -1"):
            a.write(a.remote[0], -1, b"x")
        assert memory == bytes(64)


def test_write_after_close() -> None:
    with connected() as (a, b, _):
        a.close()
        with pytest.raises(UsageError, match="closed"):
            a.write(a.remote[0], 0, b"x")
        with pytest.raises(RemoteError, match="has left: it closed the connection"):
            b.recv(10)


def test_a_wrong_key_is_the_writers_error() -> None:
    with connected() as (a, _, memory):
        remote = a.remote[0]
        forged = type(remote)(remote.va, remote.length, remote.rkey ^ 1)
        with pytest.raises(RemoteError, match="refused the address or the key"):
            a.write(forged, 0, b"x")
        assert not any(memory)


FAILURES = {
    "stopped answering": lambda a, b: b.device.set_faults(black_hole=True),
    "refused the address or the key": lambda a, b: [b.device.deregister(one) for one in b._memory.regions],
    "has left": lambda a, b: b.close(),
    "does not call recv": lambda a, b: [a.write(a.remote[0], 0, b"x", imm=n) for n in range(16)],
}


@pytest.mark.parametrize("cause", FAILURES)
def test_what_ended_a_connection_is_told_by_every_call_after_it(cause: str) -> None:
    """To those who posted at the same time, to those who come later, and to those who wait for messages."""
    with connected(timeout=10, retry_linear=3, retry_exponential=2, max_wimm=16) as (a, b, _):
        a.write(a.remote[0], 0, b"x")
        remote = a.remote[0]
        FAILURES[cause](a, b)
        numbers = []
        with suppress(RemoteError):  # the first may have failed before the second is posted
            numbers += [a.post(remote, 0, b"x", imm=1)]
            numbers += [a.post(remote, 0, b"x", imm=1) for _ in range(2)]
        calls = [lambda number=number: a.wait(number, 20) for number in numbers]
        calls += 2 * [lambda: a.write(remote, 0, b"x"), lambda: a.post(remote, 0, b"x"), lambda: a.recv(20)]
        calls += [lambda: asyncio.run(a.write_async(remote, 0, b"x")), lambda: asyncio.run(a.recv_async())]
        for call in calls:
            with pytest.raises(RemoteError, match=rf"peer 127\.0\.0\.1 port \d+ .*{cause}"):
                call()


def test_a_failure_that_nobody_waited_for_is_told_by_the_next_write() -> None:
    with connected(timeout=10, retry_linear=3, retry_exponential=2) as (a, b, _):
        b.device.set_faults(black_hole=True)
        a.post(a.remote[0], 0, b"x")
        assert eventually(lambda: a.qp.state == QpState.ERROR)
        with pytest.raises(RemoteError, match="stopped answering"):
            a.write(a.remote[0], 0, b"x")


def test_peer_falls_silent() -> None:
    with connected(timeout=10, retry_linear=3, retry_exponential=2) as (a, b, _):
        a.write(a.remote[0], 0, b"x")
        b.device.set_faults(black_hole=True)
        with pytest.raises(RemoteError, match=r"peer 127\.0\.0\.1 port \d+ stopped answering"):
            a.write(a.remote[0], 0, b"x")


@pytest.mark.parametrize("what", ["the listener", "the device", "the listener's device"])
def test_whatever_is_closed_under_a_connection_the_peer_is_told(what: str) -> None:
    """As if the connection itself had been closed: who waits for a message ends, and so does who writes."""
    with Device(["127.0.0.1"]) as device:
        listener = listen(memory=bytearray(64), **({"device": device} if what == "the device" else {}))
        closes = {"the listener": listener.close, "the device": device.close}.get(what, listener.device.close)
        with connect("127.0.0.1", listener.port) as a, listener.accept(10) as b:
            a.write(a.remote[0], 0, b"x", imm=1)
            assert b.recv(10).imm == 1
            outcome = outcome_of(a.recv, closes)
            assert isinstance(outcome, RemoteError) and "has left" in str(outcome), outcome
            with pytest.raises(RemoteError, match=r"peer 127\.0\.0\.1 port \d+ has left"):
                a.write(a.remote[0], 0, b"x")
            for call in (b.recv, lambda: b.write(a.remote[0], 0, b"x")):
                with pytest.raises(UsageError, match="the device is closed"):
                    call()
        listener.close()


def test_too_many_immediates_for_the_receives_posted() -> None:
    with connected(max_wimm=4) as (a, b, _):
        for i in range(4):
            a.write(a.remote[0], 0, b"x", imm=i)
        with pytest.raises(RemoteError, match="no receive posted"):
            for i in range(4):
                a.write(a.remote[0], 0, b"x", imm=i)
        assert b.recv(5).imm == 0


def test_accept_asks_without_waiting() -> None:
    with listen() as listener:
        with pytest.raises(TimeoutError, match="no peer has connected yet"):
            listener.accept(0)
        with pytest.raises(TimeoutError, match=r"no peer connected within 0\.01 s"):
            listener.accept(0.01)
        with connect("127.0.0.1", listener.port):
            found: list[Connection] = []

            def is_there() -> bool:
                with suppress(TimeoutError):
                    found.append(listener.accept(0))
                return bool(found)

            assert eventually(is_there)
            found[0].close()


def test_accept_for_asyncio_loses_nobody_when_it_is_cancelled() -> None:
    async def run() -> None:
        with listen() as listener:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(listener.accept_async(), 0.05)
            peers = [await connect_async("127.0.0.1", listener.port) for _ in range(3)]
            accepted = await asyncio.wait_for(asyncio.gather(*(listener.accept_async() for _ in range(3))), 20)
            assert len({id(one) for one in accepted}) == 3
            for one in (*peers, *accepted):
                one.close()

    asyncio.run(run())


@contextmanager
def stubborn_listener(kind: str) -> Iterator[int]:
    """A port where a handshake gets so far and no further."""
    with socket.socket() as server, ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = server.getsockname()[1]
        if kind == "full":  # no process accepts, and the kernel's queue is full: the TCP connection is not made, either
            for _ in range(8):
                one = stack.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", port))
        elif kind == "greets":

            def serve() -> None:
                with suppress(OSError), server.accept()[0] as sock:
                    sock.sendall(hello())
                    while sock.recv(1 << 16):
                        pass

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            stack.callback(thread.join, 10)
        yield port


@pytest.mark.parametrize("kind", ["full", "silent", "greets"])
def test_cancelling_a_connect_takes_effect_at_once_and_leaves_nothing(kind: str) -> None:
    """By hand and by a timeout, at every step; other tasks run at the same time."""
    with stubborn_listener(kind) as port, Device(["127.0.0.1"]) as device:
        threads = threading.active_count()

        async def run() -> None:
            for own in (device, None):
                task = asyncio.create_task(connect_async("127.0.0.1", port, device=own, memory=bytearray(64)))
                await asyncio.sleep(0.2)
                assert not task.done() and threading.active_count() == threads
                task.cancel()
                done, _ = await asyncio.wait([task], timeout=10)
                assert done and task.cancelled()
                if kind == "greets":
                    break  # it hears one
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(connect_async("127.0.0.1", port, device=own), 0.1)
                with pytest.raises(RemoteError, match=r"in time|does not answer"):
                    await connect_async("127.0.0.1", port, device=own, timeout_s=0.1)

        asyncio.run(run())
        assert threading.active_count() <= threads
        assert not device._regions and device._native.cq_count == 0


def test_wrong_numbers_are_refused_in_our_words() -> None:
    for wrong in (70000, -1, "http", 1.5, None, True):
        with pytest.raises(ConfigError, match="port"):
            listen(port=wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="port"):
            connect("127.0.0.1", wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="timeout_s"):
        connect("127.0.0.1", 1, timeout_s=0)
    with connected() as (a, b, _):
        for imm in (-1, 1 << 32, 1.5, "x"):
            with pytest.raises(ConfigError, match="imm"):
                a.write(a.remote[0], 0, b"x", imm=imm)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="offset"):
            a.write(a.remote[0], 0.5, b"x")  # type: ignore[arg-type]
        a.write(a.remote[0], 0, b"x", imm=7)
        assert b.recv(10).imm == 7


def test_memory_is_registered_for_as_long_as_it_is_offered() -> None:
    with Device(["127.0.0.1"]) as near, Device(["127.0.0.1"]) as far:
        own = far.register(bytearray(64), remote_write=True)
        listener = listen(device=far, memory=[own, bytearray(128)])
        assert [region.length for region in listener.regions] == [64, 128] and len(far._regions) == 2
        with connect("127.0.0.1", listener.port, device=near, memory=bytearray(32)) as a:
            assert len(near._regions) == 1
            with listener.accept(10) as b:
                listener.close()
                a.write(a.remote[1], 0, b"still there", imm=1)
                assert b.recv(10).imm == 1 and len(far._regions) == 2
        assert far._regions == {own} and not near._regions
        with pytest.raises(ConfigError, match="own device"):
            listen(device=near, memory=own)


def test_a_listener_that_is_dropped_ends() -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "softmrc-listener"]

    before = len(threads())
    listener = listen()
    port = listener.port
    assert len(threads()) == before + 1
    del listener
    assert eventually(lambda: len(threads()) == before)
    with pytest.raises(RemoteError, match="nothing listens on"):
        connect("127.0.0.1", port)
