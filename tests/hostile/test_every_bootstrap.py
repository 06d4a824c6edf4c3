"""One table of attacks on what happens before the first packet, run against all three that have it: connections, the
NCCL plugin, and groups. The first two listen at TCP ports, with the same handshake; there the attacker connects, or
listens. A group has no listener: its ranks meet in a store, and there the attacker writes records.

Whatever the attack: no connection is made, the victim gives a reason that names the attacker, the attacker receives at
most a sentence, and an honest end is served afterwards.
"""

from __future__ import annotations

import re
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bootstraps import HOST, SECRET, Bootstrap, Connections, Plugin
from liar import (
    CONFIRM,
    HELLO,
    LIMIT_S,
    OF_KEY,
    OF_SECRET,
    OFFER,
    REFUSAL,
    Liar,
    Recorder,
    eventually,
    frame,
    frames,
    heard,
    hello,
    honest,
    session,
)
from lies import LIES, TRUE

import parts
from sanitizers import NOT_UNDER_SANITIZERS
from softmrc import _core
from softmrc._core import Credentials, HandshakeEvent
from softmrc.collectives import CollectiveError, DirectoryStore, store_rendezvous
from softmrc.collectives.store_rendezvous import LONGEST_ENTRY, StoreRendezvous
from softmrc.errors import HandshakeError

if not _core.can_seal():
    pytest.skip("built without libcrypto", allow_module_level=True)

VERSION, PACKETS = _core.HANDSHAKE_VERSION, _core.WIRE_VERSION
ANOTHER_PROTOCOL = "does not speak this protocol; is it something else that has this port?"
NO_SECRET, DIFFERENT = "does not know the secret", "the secret is not the same on both sides"
NOT_AUTHENTIC = "sent what is not authentic"


def message() -> bytes:
    """A key, and a tag that proves nothing."""
    return secrets.token_bytes(32 + 16)


def greeting(own: Credentials, first: bytes | None) -> bytes:
    """The hello of a connector; or of a listener that answers this one, or one of its own where it cannot read it."""
    if first is None:
        return bytes(parts.Handshake(True, own).take_outgoing())
    for one in (first, parts.Handshake(True, own).take_outgoing()):
        listener = parts.Handshake(False, own)
        with suppress(HandshakeError):
            listener.on_bytes(one)
            return bytes(listener.take_outgoing())
    raise AssertionError


def right(end: Bootstrap, first: bytes | None = None) -> bytes:
    return greeting(end.credentials(), first)


# What is written to a store in the place of a rank. -----------------------------------------------------------------

Record = Callable[[StoreRendezvous, Path], bytes]  # of what rank 1 would be, and a folder for another store
KNOWN = SECRET.encode()
NO_SESSION = "a store holds whole records: there is no sequence of frames"


def authentic(rank: StoreRendezvous, text: str) -> bytes:
    """With the MAC of a peer that knows the secret."""
    key = rank.key("record", 1)
    return f"proof:{rank._mac(KNOWN, key, text)} {text}".encode()


def record(version: int = StoreRendezvous.VERSION) -> str:
    return f"{version} {secrets.token_hex(8)} +text of 1"


def recorded(rank: StoreRendezvous, folder: Path) -> bytes:
    """What rank 1 wrote in an earlier run of the same group."""
    store = DirectoryStore(folder)
    both = [StoreRendezvous(store, rank.name, number, 2, 20.0, KNOWN) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for joining in [pool.submit(one.join, "") for one in both]:
            joining.result(LIMIT_S)
    return bytes(store.get(both[1].key("record", 1)))


def changed(rank: StoreRendezvous, _: Path) -> bytes:
    true = bytearray(authentic(rank, record()))
    true[-1] ^= 1
    return bytes(true)


@dataclass(frozen=True)
class Forged:
    """A record in the place of rank 1's, and the reason why rank 0 refuses it. Where it is not valid, an honest rank 1
    that comes later is served."""

    written: Record
    reason: str
    is_valid: bool = False


# The table. ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attack:
    """What the attacker sends: (victim, the connector's hello if the attacker is the listener). The reason that the
    victim gives; the refusal that the attacker receives, '' for none. `store`: the same attack on a group, or why there
    is none."""

    sends: Callable[[Bootstrap, bytes | None], bytes]
    reason: str
    refusal: str
    store: Forged | str
    as_connector: bool = True
    as_listener: bool = True


SAME_SECRET = "set the same secret (SOFTMRC_SECRET) on both sides, or a key (SOFTMRC_IDENTITY) on both"
SAME_SOFTMRC = "install the same SoftMRC on both"
ATTACKS = {
    "no secret": Attack(
        lambda end, first: hello(),
        f"has set neither a secret nor a key, this side has set a secret: {SAME_SECRET}",
        f"your side has set neither a secret nor a key, its side has set a secret: {SAME_SECRET}",
        Forged(lambda rank, _: record().encode(), "a record not proved with the secret; set SOFTMRC_SECRET alike"),
    ),
    "another secret": Attack(
        lambda end, first: greeting(end.credentials("wrong"), first),
        NO_SECRET,
        DIFFERENT,
        Forged(
            lambda rank, _: f"proof:{rank._mac(b'wrong', rank.key('record', 1), 'x')} {record()}".encode(),
            "a record proved with another secret; set SOFTMRC_SECRET alike",
        ),
    ),
    "a key in place of the secret": Attack(
        lambda end, first: hello(OF_KEY, bytes(31) + b"\1"),
        f"has set a key, this side has set a secret: {SAME_SECRET}",
        f"your side has set a key, its side has set a secret: {SAME_SECRET}",
        "ranks have no keys of their own",
    ),
    "a message that proves nothing": Attack(
        lambda end, first: hello(OF_SECRET, message()),
        NO_SECRET,
        DIFFERENT,
        Forged(lambda rank, _: b"proof:" + b"0" * 64 + b" " + record().encode(), "proved with another secret"),
    ),
    "a key of small order": Attack(
        lambda end, first: hello(OF_SECRET, bytes(48)), NO_SECRET, DIFFERENT, "a MAC has no public key"
    ),
    "another version of the handshake": Attack(
        lambda end, first: hello(OF_SECRET, message(), version=VERSION + 1),
        f"speaks version {VERSION + 1} of the handshake, this side version {VERSION}: {SAME_SOFTMRC}",
        f"this side speaks version {VERSION} of the handshake, yours is {VERSION + 1}: {SAME_SOFTMRC}",
        Forged(
            lambda rank, _: authentic(rank, record(StoreRendezvous.VERSION + 1)),
            f"rank 1 runs another version of SoftMRC (its records are of version {StoreRendezvous.VERSION + 1}",
            is_valid=True,
        ),
    ),
    "another version of the packets": Attack(
        lambda end, first: hello(OF_SECRET, message(), wire=PACKETS + 1),
        f"speaks version {PACKETS + 1} of the packets, this side version {PACKETS}: {SAME_SOFTMRC}",
        f"this side speaks version {PACKETS} of the packets, yours is {PACKETS + 1}: {SAME_SOFTMRC}",
        "the version of the records covers that of the packets",
    ),
    "another protocol": Attack(
        lambda end, first: b"GET / HTTP/1.1\r\n\r\n",
        ANOTHER_PROTOCOL,
        "",
        Forged(lambda rank, _: b"\xff\xfe\x00\x80", "4 bytes that are no text"),
    ),
    "a frame of no bytes": Attack(
        lambda end, first: bytes(4),
        ANOTHER_PROTOCOL,
        "",
        Forged(lambda rank, _: b"", "a record not proved with the secret"),
    ),
    "a frame of 513 bytes": Attack(
        lambda end, first: struct.pack(">I", 513) + HELLO.to_bytes() * 513,
        ANOTHER_PROTOCOL,
        "",
        Forged(lambda rank, _: b"x" * (LONGEST_ENTRY + 1), f"{LONGEST_ENTRY + 1:,} bytes, of at most"),
    ),
    "a frame of 513 bytes after a hello": Attack(
        lambda end, first: right(end) + struct.pack(">I", 513), "sent a frame of 513 bytes", "", NO_SESSION, True, False
    ),
    "an offer before a hello": Attack(lambda end, first: session(OFFER, TRUE), ANOTHER_PROTOCOL, "", NO_SESSION),
    "an offer before a confirmation": Attack(
        lambda end, first: right(end) + session(OFFER, TRUE), NOT_AUTHENTIC, "", NO_SESSION, True, False
    ),
    "two hellos": Attack(
        lambda end, first: right(end) * 2, "sent a frame that was not its turn", "", NO_SESSION, True, False
    ),
    "a confirmation that proves nothing": Attack(
        lambda end, first: right(end) + frame(CONFIRM, bytes(16)), NO_SECRET, "", NO_SESSION, True, False
    ),
    "a changed byte": Attack(
        lambda end, first: right(end, first)[:-1] + bytes([right(end, first)[-1] ^ 1]),
        NO_SECRET,
        DIFFERENT,
        Forged(changed, "proved with another secret"),
    ),
    "a refusal with commands for a terminal": Attack(
        lambda end, first: frame(REFUSAL, b"\0[/x]\x1b[2J"),
        "refused: [/x]?[2J",
        "",
        Forged(lambda rank, _: b"\x1b[2J\x07 \r\n", "bytes that are no text"),
    ),
    "the connector's own hello": Attack(lambda end, first: first or b"", NO_SECRET, DIFFERENT, NO_SESSION, False, True),
}


@pytest.fixture(scope="module", params=["connections", "NCCL plugin"])
def end(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bootstrap]:
    with ExitStack() as stack:
        if request.param == "connections":
            yield Connections(stack)
        else:
            yield Plugin(stack, tmp_path_factory.mktemp("plugin"))


@contextmanager
def visit(end: Bootstrap, source: str = HOST) -> Iterator[socket.socket]:
    with socket.create_connection((HOST, end.port), LIMIT_S, (source, 0)) as sock:
        yield sock


def words_in(said: bytes) -> list[str]:
    """The refusals that anybody can read; all else is a hello, or encrypted for a peer that knows the secret."""
    for one in (found := frames(said)):
        assert one[4:5] in b"HES", "an offer is in a session"
    return [one[6:].decode() for one in found if one[4] == REFUSAL]


def says(end: Bootstrap, sock: Any, words: str) -> bool:
    """The listener does, of who has this end of a socket."""
    return eventually(lambda: f"port {sock[1]} {words}" in end.log())


@pytest.mark.parametrize("attack", [one for one in ATTACKS if ATTACKS[one].as_connector])
def test_who_connects_and_does_not_know_the_secret(end: Bootstrap, attack: str) -> None:
    case = ATTACKS[attack]
    with visit(end) as sock:
        name = sock.getsockname()
        with suppress(OSError):  # it may hang up before it has heard all
            sock.sendall(case.sends(end, None) + frame(CONFIRM, bytes(16)) + session(OFFER, TRUE))
        assert words_in(heard(sock)) == ([case.refusal] if case.refusal else [])
    assert says(end, name, case.reason)
    assert end.is_left_as_it_was() and end.serves()


@pytest.mark.parametrize("attack", [one for one in ATTACKS if ATTACKS[one].as_listener])
def test_who_listens_and_does_not_know_the_secret(end: Bootstrap, attack: str) -> None:
    case = ATTACKS[attack]
    said: list[bytes] = []
    with socket.create_server((HOST, 0)) as server:

        def listen() -> None:
            with server.accept()[0] as sock:
                said.append(sock.recv(1 << 16))
                sock.sendall(case.sends(end, said[0]))
                said.append(heard(sock))

        thread = threading.Thread(target=listen)
        thread.start()
        port = server.getsockname()[1]
        why = end.call(port)
        thread.join(LIMIT_S)
    assert f"{HOST} port {port} {case.reason}" in why
    assert words_in(b"".join(said)) == ([case.refusal] if case.refusal else [])
    assert end.is_left_as_it_was() and end.serves()


@pytest.mark.parametrize("attack", [one for one in ATTACKS if isinstance(ATTACKS[one].store, Forged)])
def test_who_writes_the_store_and_does_not_know_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    case = ATTACKS[attack].store
    assert isinstance(case, Forged)

    def attacked(name: str) -> tuple[StoreRendezvous, StoreRendezvous]:
        ranks = [StoreRendezvous(DirectoryStore(tmp_path), name, rank, 2, LIMIT_S, KNOWN) for rank in range(2)]
        ranks[0].start()
        ranks[1].nonce = ranks[0].nonce
        ranks[1]._store.set(ranks[1].key("record", 1), case.written(ranks[1], tmp_path / f"past of {name}"))
        ranks[1].nonce = ""
        return ranks[0], ranks[1]

    monkeypatch.setattr(store_rendezvous, "UNPROVED_S", 0.3)
    victim, _ = attacked("alone")
    with pytest.raises(CollectiveError, match=re.escape(case.reason)) as refusal:
        victim.join("text of 0")
    assert "rank 1" in str(refusal.value) and str(refusal.value).isprintable() and not victim.records
    if not case.is_valid:
        monkeypatch.setattr(store_rendezvous, "UNPROVED_S", 1e4)
        with ThreadPoolExecutor(2) as pool:
            joining = [pool.submit(one.join, f"text of {rank}") for rank, one in enumerate(attacked("with the other"))]
            assert [one.result(LIMIT_S) for one in joining] == [["text of 0", "text of 1"]] * 2


# Attackers that take several steps. A group's are in tests/collectives/test_proved_groups.py: its store is no session.


def test_an_honest_offer_is_answered(end: Bootstrap) -> None:
    """Else the next test would pass for the wrong reason."""
    with visit(end) as sock:
        liar = Liar(sock, end.credentials())
        liar.greet()
        assert liar.offer(end.offer({}))
    assert end.is_left_as_it_was()


@pytest.mark.parametrize("lie", LIES)
def test_who_knows_the_secret_and_makes_a_false_offer(end: Bootstrap, lie: str) -> None:
    with visit(end) as sock:
        name = sock.getsockname()
        liar = Liar(sock, end.credentials())
        liar.greet()
        changes = {key: value for key, value in LIES[lie].items() if value != honest().get(key)}
        with pytest.raises(HandshakeError, match=r"^refused: ") as refusal:
            liar.offer(end.offer(changes))
        assert len(str(refusal.value)) < 1000
    assert says(end, name, "")
    assert end.is_left_as_it_was()


@pytest.mark.parametrize("step", ["confirmation", "offer"])
def test_who_changes_a_byte_on_the_way(end: Bootstrap, step: str) -> None:
    with visit(end) as sock:
        name = sock.getsockname()
        liar = Liar(sock, end.credentials())
        liar.greet()
        liar.handshake.offer(end.offer({}))
        confirmation, offer = (bytearray(one) for one in frames(liar.handshake.take_outgoing()))
        (confirmation if step == "confirmation" else offer)[-1] ^= 1
        sock.sendall(confirmation + offer)
        with pytest.raises(
            HandshakeError,
            match="secret is not the same" if step == "confirmation" else "what you sent is not authentic",
        ):
            liar.receive(HandshakeEvent.OFFERED)
    assert says(end, name, NO_SECRET if step == "confirmation" else NOT_AUTHENTIC)
    assert end.is_left_as_it_was() and end.serves()


@pytest.mark.parametrize("steps", range(4))
def test_who_leaves_half_way(end: Bootstrap, steps: int) -> None:
    """After nothing, a hello, the listener's hello, the listener's offer."""
    with visit(end) as sock:
        name = sock.getsockname()
        liar = Liar(sock, end.credentials())
        if steps == 1:
            liar.send()
        if steps > 1:
            liar.greet()
        if steps > 2:
            liar.offer(end.offer({}))
        sock.shutdown(socket.SHUT_WR)
        heard(sock)
    assert says(end, name, "closed the connection during the handshake")
    assert end.is_left_as_it_was() and end.serves()


def test_who_replays_a_recorded_handshake(end: Bootstrap) -> None:
    """The whole of what an honest connector said, or its hello alone; and what the listener said, to a connector."""
    recorder = Recorder(end.port)
    assert end.serves(recorder.port)
    recorder.stop()
    first, *more = frames(recorder.said["connector"])
    assert [one[4:5] for one in (first, *more)][:4] == [b"H", b"C", b"S", b"S"], "and an offer, and ready"
    for said, why in ((first, "closed the connection"), (recorder.said["connector"], NO_SECRET)):
        with visit(end) as sock:
            name = sock.getsockname()
            sock.sendall(said)
            sock.shutdown(socket.SHUT_WR)
            assert words_in(heard(sock)) == []
        assert says(end, name, why)
    with socket.create_server((HOST, 0)) as server:

        def replay() -> None:
            with server.accept()[0] as sock, suppress(OSError):
                sock.sendall(recorder.said["listener"])
                heard(sock)

        thread = threading.Thread(target=replay)
        thread.start()
        assert NO_SECRET in end.call(server.getsockname()[1])
        thread.join(LIMIT_S)
    assert end.is_left_as_it_was() and end.serves()


CROWD = 400  # more than a process holds


@pytest.mark.parametrize("sources", [1, 8], ids=["one address", "eight addresses"])
@pytest.mark.parametrize("says_hello", [False, True], ids=["silent", "after a hello"])
def test_a_crowd_keeps_nobody_out(end: Bootstrap, sources: int, says_hello: bool) -> None:
    with ExitStack() as crowd:
        for number in range(CROWD):
            sock = crowd.enter_context(visit(end, f"127.0.{number % sources}.9"))
            if says_hello:
                sock.sendall(right(end))
            if number % 50 == 0:
                time.sleep(0.01)
        assert end.serves()
        assert eventually(lambda: "too many had not finished the handshake" in end.log())
    assert end.is_left_as_it_was() and end.serves()


@pytest.mark.slow
def test_who_is_silent_or_sends_a_byte_at_a_time_is_dropped(end: Bootstrap) -> None:
    """After ten seconds, in which honest ends are served."""
    with visit(end) as silent, visit(end) as slow:
        names = [one.getsockname() for one in (silent, slow)]
        is_over = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                for byte in (500).to_bytes(4, "big") + b" " * 500:
                    slow.send(bytes([byte]))
                    if is_over.wait(0.1):
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert end.serves()
            for name in names:
                assert says(end, name, "did not finish the handshake in time")
        finally:
            is_over.set()
            thread.join(LIMIT_S)
    assert end.is_left_as_it_was() and end.serves()


@NOT_UNDER_SANITIZERS  # which open files themselves
def test_a_listener_that_can_open_no_descriptor(end: Bootstrap) -> None:
    """It serves those that came during that time, or tells them to try again; and those who come later."""
    with ExitStack() as clients:
        sockets = [clients.enter_context(socket.socket()) for _ in range(4)]
        with end.starved():
            for sock in sockets:
                sock.settimeout(LIMIT_S)
                sock.connect((HOST, end.port))
            time.sleep(0.3)
        assert isinstance(end, Connections) or "connections wait: descriptors" in end.log()
        for sock in sockets:
            liar = Liar(sock, end.credentials())
            liar.greet()
            assert liar.offer(end.offer({}))
    assert end.is_left_as_it_was() and end.serves()
