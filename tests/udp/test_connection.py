"""The easy way: two sides find each other, and everything that should stop them does so with one clear exception."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from softmrc import handshake
from softmrc.connection import Connection, Listener, connect, listen
from softmrc.errors import ConfigError, DeviceError, RemoteError, UsageError
from softmrc.verbs import Device


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


def refused(client: dict[str, Any], server: dict[str, Any]) -> tuple[BaseException, BaseException]:
    """What both sides raise."""
    problems: dict[str, BaseException] = {}

    def serve(listener: Listener) -> None:
        try:
            listener.accept(20).close()
        except Exception as error:
            problems["server"] = error

    with listen(memory=bytearray(64), **server) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            connect("127.0.0.1", listener.port, **client).close()
        except Exception as error:
            problems["client"] = error
        thread.join()
    return problems["client"], problems["server"]


def test_wrong_secret() -> None:
    client, server = refused({"secret": "right"}, {"secret": "wrong"})
    assert isinstance(client, RemoteError) and "secret" in str(client)
    assert isinstance(server, RemoteError) and "does not know the secret" in str(server)


def test_secret_on_one_side_only() -> None:
    client, server = refused({}, {"secret": "something"})
    assert isinstance(client, RemoteError) and "secret" in str(client)
    assert isinstance(server, RemoteError) and "secret" in str(server)


def test_wrong_version() -> None:
    with listen(memory=bytearray(64)) as listener:
        failure: list[BaseException] = []

        def serve() -> None:
            try:
                listener.accept(20)
            except RemoteError as error:
                failure.append(error)

        thread = threading.Thread(target=serve)
        thread.start()
        with socket.create_connection(("127.0.0.1", listener.port)) as sock:
            channel = handshake.Channel(sock, "connector", None)
            channel.send({"softmrc": 999, "nonce": channel.nonce, "sealed": False})
            thread.join()
            channel.receive()
            with pytest.raises(RemoteError, match="version"):
                channel.receive()
        assert "version 999" in str(failure[0])


def test_planes_must_match() -> None:
    client, server = refused({"planes": ["127.0.0.1"]}, {"planes": ["127.0.0.1", "127.0.0.2"]})
    assert "planes" in str(client) and "planes" in str(server)


def test_icrc_must_match() -> None:
    client, _ = refused({"icrc": False}, {"icrc": True})
    assert isinstance(client, RemoteError) and "ICRC" in str(client)


def test_without_a_secret_only_loopback() -> None:
    with pytest.raises(ConfigError, match="secret"):
        listen("0.0.0.0")


def test_port_in_use() -> None:
    with listen() as listener, pytest.raises(DeviceError, match="in use"):
        listen(port=listener.port)
    with Device(["127.0.0.1"]) as device:
        taken = device.source_ports[0][0]
        with pytest.raises(DeviceError, match="in use"):
            Device(["127.0.0.1"], port=taken)


def test_no_such_interface() -> None:
    for plane in ("nosuch0", "127.0.0.1%nosuch0"):
        with pytest.raises(DeviceError, match="no interface nosuch0"):
            Device([plane])


def test_nobody_listens() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        with pytest.raises(RemoteError, match="does not answer"):
            connect("127.0.0.1", sock.getsockname()[1])


def test_buffer_too_small() -> None:
    with connected(64) as (a, _, memory):
        for offset, data in ((0, bytes(65)), (60, bytes(5)), (-1, b"x")):
            with pytest.raises(ConfigError, match="64"):
                a.write(a.remote[0], offset, data)
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


def test_peer_falls_silent() -> None:
    with connected(timeout=10, retry_linear=3, retry_exponential=2) as (a, b, _):
        a.write(a.remote[0], 0, b"x")
        b.device.set_faults(black_hole=True)
        with pytest.raises(RemoteError, match=r"peer 127\.0\.0\.1 port \d+ stopped answering"):
            a.write(a.remote[0], 0, b"x")


def test_peer_closes_its_device() -> None:
    with connected() as (a, b, _):
        a.write(a.remote[0], 0, b"x")
        b.device.close()
        with pytest.raises(RemoteError, match=r"peer 127\.0\.0\.1 port \d+ takes nothing any more"):
            a.write(a.remote[0], 0, b"x")


def test_too_many_immediates_for_the_receives_posted() -> None:
    with connected(max_wimm=4) as (a, b, _):
        for i in range(4):
            a.write(a.remote[0], 0, b"x", imm=i)
        with pytest.raises(RemoteError, match="no receive posted"):
            for i in range(4):
                a.write(a.remote[0], 0, b"x", imm=i)
        assert b.recv(5).imm == 0
