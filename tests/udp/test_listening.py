"""Where a listener is reached, what becomes of clients that it cannot connect, and what its user learns of it."""

from __future__ import annotations

import io
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from softmrc import _core
from softmrc.cli import info, key, perf
from softmrc.connection import Listener, Refusals, connect, identity, listen
from softmrc.connection.connection import Connection
from softmrc.connection.waiting import BlockingWait, run_blocking
from softmrc.device import Device
from softmrc.errors import ConfigError, DeviceError, MrcError, RemoteError
from udp.loopback import eventually

NAME = "host.example"


def resolves_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """`NAME` does, for this process."""
    real = socket.getaddrinfo

    def resolve(host: str, *more: Any, **options: Any) -> list[Any]:
        if host != NAME:
            return real(host, *more, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def answers(listener: Listener, address: str) -> bool:
    try:
        socket.create_connection((address, listener.port), 5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_all_addresses_of_a_name_that_are_of_no_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, "127.0.0.5", "127.0.0.6")
    with Device(["127.0.0.1"]) as device, listen(NAME, device=device) as listener:
        assert answers(listener, "127.0.0.5") and answers(listener, "127.0.0.6")
        assert not answers(listener, "127.0.0.1")


def test_a_name_whose_second_address_is_of_a_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, "192.0.2.7", "127.0.0.2")
    with Device(["127.0.0.1", "127.0.0.2"]) as device, listen(NAME, device=device, secret="of both ends") as listener:
        assert answers(listener, "127.0.0.1") and answers(listener, "127.0.0.2")


def test_a_name_without_an_address_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, "192.0.2.7", "192.0.2.8")
    with Device(["127.0.0.1"]) as device, pytest.raises(DeviceError, match="cannot"):
        listen(NAME, device=device, secret="of both ends")


def test_a_name_with_an_address_off_the_machine_takes_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, "127.0.0.1", "192.0.2.7")
    with Device(["127.0.0.1"]) as device, pytest.raises(ConfigError, match="a shared secret"):
        listen(NAME, device=device)


def test_a_client_that_cannot_be_connected_at_the_end_is_counted_and_sees_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the core has handed it over."""
    real = Connection.begin

    def begin(self: Connection, channel: Any, slot: object = None) -> None:
        if slot is not None:
            raise MemoryError("no memory left")
        real(self, channel)

    monkeypatch.setattr(Connection, "begin", begin)
    with listen() as listener:
        with suppress(RemoteError), connect("127.0.0.1", listener.port) as connection:
            assert eventually(connection.has_lost_peer)
        assert eventually(lambda: listener.refused.count == 1)
        assert "could not be connected: no memory left" in listener.refused.reasons[-1]
        with pytest.raises(TimeoutError):
            listener.accept(0)


def test_looking_up_a_name_takes_no_longer_than_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    real = socket.getaddrinfo

    def slow(host: str, *more: Any, **options: Any) -> Any:
        if host == NAME and not options.get("flags"):
            goes_on.wait(60)
        return real("127.0.0.1" if host == NAME and not options.get("flags") else host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    try:
        with pytest.raises(RemoteError, match=rf"{NAME} port 1 does not answer: the name was not resolved in time"):
            connect(NAME, 1, timeout_s=0.2)
    finally:
        goes_on.set()
    assert run_blocking(BlockingWait().resolve(NAME, 1, 60.0))[0][-1][0] == "127.0.0.1"


def test_a_name_that_does_not_exist_is_an_error_of_the_resolver() -> None:
    with pytest.raises(RemoteError, match=r"cannot resolve no\.such\.invalid"):
        connect("no.such.invalid", 1, timeout_s=30)


def test_a_server_prints_a_line_for_each_refused_client_and_no_more_than_a_few() -> None:
    printed = io.StringIO()
    console = Console(file=printed)
    reasons = tuple(f"10.0.0.1 port {number} [b]has no secret" for number in range(9))
    assert perf.report(Refusals(0, ()), 0, console) == 0
    assert perf.report(Refusals(2, reasons[:2]), 0, console) == 2
    assert printed.getvalue().splitlines() == [f"refused: {reason}" for reason in reasons[:2]]
    assert perf.report(Refusals(100, reasons), 2, console) == 100
    assert len(printed.getvalue().splitlines()) == 2 + perf.MOST_REPORTED + 1
    assert printed.getvalue().endswith("refused: 93 more\n")


def test_a_server_that_waits_prints_whom_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    printed, listener = io.StringIO(), listen(memory=bytearray(perf.MEMORY), secret="one secret")
    monkeypatch.setattr(perf, "listen", lambda *_, **__: listener)
    monkeypatch.setattr(perf, "REPORT_S", 0.05)

    def serve() -> None:
        with suppress(MrcError):  # it is closed in the end
            perf.serve("127.0.0.1", 0, False, Console(file=printed))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with pytest.raises(RemoteError):
            connect("127.0.0.1", listener.port, secret="another secret")
        assert eventually(lambda: "refused: 127.0.0.1 port " in printed.getvalue())
    finally:
        listener.close()
        thread.join(60)


@pytest.mark.skipif(not _core.can_seal(), reason="built without libcrypto")
def test_the_key_in_use_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = identity.make(tmp_path / "mine")
    monkeypatch.setenv("SOFTMRC_IDENTITY", str(made.folder))
    assert made.public.hex() in CliRunner().invoke(key.key_app, ["show"]).output
    other = identity.make(tmp_path / "other")
    assert other.public.hex() in CliRunner().invoke(key.key_app, ["show", str(other.folder)]).output


def test_what_authenticates_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOFTMRC_IDENTITY", raising=False)
    monkeypatch.setenv("SOFTMRC_SECRET", "the secret itself")
    assert [fact.found for fact in info._credentials()] == ["by a secret"]
    monkeypatch.setenv("SOFTMRC_IDENTITY", "/some/folder")
    (fact,) = info._credentials()
    assert fact.found == "connections by the key in /some/folder; SOFTMRC_SECRET is for groups and NCCL alone"
