"""The TCP connections of handshakes, watched for their end by the lanes of a device."""

from __future__ import annotations

import os
import time

import pytest
from loopback import LIMIT_S, eventually

from softmrc.connection import Connection, Listener, connect, listen
from softmrc.device import Device
from softmrc.errors import RemoteError


def met(listener: Listener, device: Device) -> tuple[Connection, Connection]:
    here = connect("127.0.0.1", listener.port, memory=bytearray(64), device=device)
    return here, listener.accept(LIMIT_S)


def test_a_number_that_another_socket_has_by_now_is_let_alone() -> None:
    """A socket may be closed before its connection, by the garbage collector; the next one has its number."""
    with Device(["127.0.0.1"]) as device, listen(memory=bytearray(64)) as listener:
        first, its_peer = met(listener, device)
        number = first._channel.socket.fileno()
        its_peer.close()
        first._channel.socket.close()
        second, peer = met(listener, device)
        assert second._channel.socket.fileno() == number
        first.close(0.0)
        peer.close()
        with pytest.raises(RemoteError, match="left"):
            second.recv(LIMIT_S)
        second.close()


def test_a_device_that_lingers_sleeps_though_a_child_has_its_descriptors() -> None:
    with listen(memory=bytearray(64)) as listener:
        device = Device(["127.0.0.1"])
        here, there = met(listener, device)
        parent, child = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(child)
            os.read(parent, 1)
            os._exit(0)
        os.close(parent)
        try:
            there.close()
            assert eventually(here.has_lost_peer)
            here.close()
            device.close()
            begun = time.process_time()
            time.sleep(0.5)
            assert time.process_time() - begun < 0.25, "a lane runs without pause"
        finally:
            os.close(child)
            os.waitpid(pid, 0)
