"""Ends that prove themselves by keys of their own: whom they know they connect to, and nobody else gets further than a
sentence, which both ends hear."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from liar import LIMIT_S, heard, is_left_as_it_was, visit

import needs
from softmrc import _core
from softmrc.connection import Connection, Listener, connect, identity, listen
from softmrc.connection.bootstrap import authenticator_of, credentials_of
from softmrc.connection.handshake import CONNECTOR, LISTENER, Authenticator, HandshakeError, call, framed, welcome
from softmrc.connection.identity import KEY, KNOWN, Identity
from softmrc.errors import ConfigError, RemoteError

pytestmark = pytest.mark.skipif(not _core.can_seal(), reason="built without sealing")

HOST = "127.0.0.1"


class People:
    """Folders with keys, and who knows whom by which names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, name: str, **knows: str) -> Path:
        """One who knows these others by the names that follow."""
        folder = self._folder / name
        if not folder.exists():
            identity.make(folder)
        lines = [f"{names} {Identity(self(other)).public.hex()}\n" for other, names in knows.items()]
        if lines:
            (folder / KNOWN).write_text("# a comment\n\n" + "".join(lines))
        return folder


@pytest.fixture
def people(tmp_path: Path) -> People:
    return People(tmp_path)


@contextmanager
def connected(mine: Path, theirs: Path, **settings: Any) -> Iterator[tuple[Connection, Connection, bytearray]]:
    memory = bytearray(4096)
    with (
        listen(memory=memory, identity=theirs, **settings) as listener,
        connect(HOST, listener.port, identity=mine, **settings) as caller,
        listener.accept(LIMIT_S) as called,
    ):
        yield caller, called, memory


@contextmanager
def refusing(listener: Listener) -> Iterator[None]:
    """Nobody gets in meanwhile, and nothing stays of who tried."""
    before = listener.refused.count
    yield
    with pytest.raises(TimeoutError):
        listener.accept(0.3)
    assert listener.refused.count == before + 1 and is_left_as_it_was(listener)


@pytest.mark.parametrize("seal", ["on", "off"])
def test_who_knows_each_other_connects(people: People, seal: str) -> None:  # spec: identities
    a, b = people("a", b=f"beta,{HOST}"), people("b", a="Alpha.")
    with connected(a, b, seal=seal) as (mine, theirs, memory):
        assert mine.is_sealed is theirs.is_sealed is (seal == "on")
        assert (mine.known_as, theirs.known_as) == ("beta", "alpha")
        mine.write(mine.remote[0], 0, b"hello", imm=1)
        assert theirs.recv(LIMIT_S).imm == 1 and memory[:5] == b"hello"


def test_the_environment_names_the_folder(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    a = people("a", a=HOST)
    monkeypatch.setenv("SOFTMRC_SECRET", "not this")
    monkeypatch.setenv("SOFTMRC_IDENTITY", str(a))
    with listen(memory=bytearray(64)) as listener, connect(HOST, listener.port) as mine:
        assert mine.known_as == HOST
    assert credentials_of("given", None) == b"given"
    with pytest.raises(ConfigError, match="either an identity or a secret"):
        credentials_of("given", a)


def test_who_is_not_known_hears_so(people: People) -> None:  # spec: identities
    a, b = people("a", b=HOST), people("b")
    key = Identity(a).public.hex()
    with listen(memory=bytearray(64), identity=b) as listener:
        with refusing(listener), pytest.raises(RemoteError, match=f"refused: your key {key} is not known here"):
            connect(HOST, listener.port, identity=a)
        assert f"shows the key {key}, which {b / KNOWN} does not have" in listener.refused.reasons[-1]
        people("b", a="alpha")  # and from now on it is, without a new listener
        with connect(HOST, listener.port, identity=a), listener.accept(LIMIT_S) as found:
            assert found.known_as == "alpha"


def test_a_listener_that_is_not_known_by_the_name_that_was_called(people: People) -> None:  # spec: identities
    """Not known at all; known, but by another name; known so, with another key."""
    cases = {
        "has none for 127.0.0.1": {"c": "gamma"},
        "and /.*known_peers has none for 127.0.0.1": {"b": "beta"},
        "not the one that /.*known_peers has for 127.0.0.1": {"b": "beta", "c": HOST},
    }
    b = people("b", a="alpha")
    for words, knows in cases.items():
        a = people("a", **knows)
        with listen(memory=bytearray(64), identity=b) as listener:
            with refusing(listener), pytest.raises(RemoteError, match=words):
                connect(HOST, listener.port, identity=a)
            assert "your key is not" in listener.refused.reasons[-1]


def test_calls_are_not_led_to_another_who_is_known(people: People) -> None:  # spec: identities
    """Which a shared secret cannot prevent."""
    a = people("a", b="127.0.0.2", c=HOST)
    b, c = people("b", a="alpha"), people("c", a="alpha")
    with listen(memory=bytearray(64), identity=b) as wrong, listen(memory=bytearray(64), identity=c) as right:
        with connect(HOST, right.port, identity=a) as mine:
            assert mine.known_as == HOST
        with refusing(wrong), pytest.raises(RemoteError, match="not the one"):
            connect(HOST, wrong.port, identity=a)


@pytest.mark.parametrize("who_has_a_key", [CONNECTOR, LISTENER])
def test_a_key_at_one_end_and_a_secret_at_the_other(people: People, who_has_a_key: str) -> None:
    a = people("a", a=HOST)
    mine, theirs = {"identity": a}, {"secret": "s"}
    if who_has_a_key == LISTENER:
        mine, theirs = theirs, mine
    with listen(memory=bytearray(64), **theirs) as listener:
        with refusing(listener), pytest.raises(RemoteError, match=r"refused: one side has a key|does not know"):
            connect(HOST, listener.port, **mine)
        assert "choose one for both" in listener.refused.reasons[-1]
    with listen(memory=bytearray(64)) as listener, pytest.raises(RemoteError, match=r"uses a secret|one side uses"):
        connect(HOST, listener.port, identity=a)


# Proofs, without sockets.

Frames = list[tuple[str, dict[str, Any]]]  # who said what
Change = Callable[[str, dict[str, Any]], dict[str, Any]]


def meet(connector: Authenticator, listener: Authenticator, change: Change = lambda _, frame: frame) -> Frames:
    """A handshake with somebody in the middle; raises what the first end that refuses does."""
    said: Frames = []
    offered: list[dict[str, Any]] = []

    def passed(who: str, frame: dict[str, Any]) -> dict[str, Any]:
        said.append((who, frame))
        return json.loads(json.dumps(change(who, frame)))

    caller, called = (
        call(connector, lambda: {"offer": 1}, offered.append),
        welcome(listener, lambda offer: {"of": offer}),
    )
    next(called)
    frame = next(caller)
    with suppress(StopIteration):
        while True:
            answer = called.send(passed(CONNECTOR, frame))
            try:
                frame = caller.send(passed(LISTENER, answer or {}))
            except StopIteration as end:
                frame = end.value
    assert offered == [{"of": {"offer": 1}}]
    return said


@pytest.fixture
def proofs(people: People) -> Callable[[], tuple[Authenticator, Authenticator]]:
    """Of two ends, for another handshake each time."""
    a, b = Identity(people("a", b="b", c="c")), Identity(people("b", a="a", c="c"))
    return lambda: (authenticator_of(a, CONNECTOR, ("b",)), authenticator_of(b, LISTENER))


def test_every_handshake_makes_another_secret(proofs: Callable[[], tuple[Authenticator, Authenticator]]) -> None:
    """Which nobody can make who sees all that is said, and both ends do."""
    made = set()
    for _ in range(3):
        connector, listener = proofs()
        said = json.dumps(meet(connector, listener))
        assert connector.secret == listener.secret and connector.secret is not None
        assert connector.secret.hex() not in said
        made.add(connector.secret)
    assert len(made) == 3


def test_what_was_said_before_is_worth_nothing(proofs: Callable[[], tuple[Authenticator, Authenticator]]) -> None:
    """Any of the frames of an earlier handshake in the place of a later one's, alone or all of one end."""
    earlier = meet(*proofs())
    for who in (CONNECTOR, LISTENER):
        old = [frame for by, frame in earlier if by == who]
        for replaced in [{number} for number in range(len(old))] + [set(range(len(old)))]:
            left = iter(range(len(old)))

            def change(by: str, frame: dict[str, Any], who: str = who) -> dict[str, Any]:
                return old[number] if by == who and (number := next(left)) in replaced else frame  # noqa: B023

            with pytest.raises(HandshakeError, match=r"does not (know|have)"):
                meet(*proofs(), change)


def test_nobody_in_the_middle_becomes_an_end(
    people: People, proofs: Callable[[], tuple[Authenticator, Authenticator]]
) -> None:
    """Not with a share of its own; nor with the key of one whom both ends know, be it its own."""
    third = Identity(people("c", a="a", b="b"))
    meeting = identity.KeyExchange(third, CONNECTOR, ("b",))
    share = meeting.to_wire()["share"]
    for who in (CONNECTOR, LISTENER):
        for changes in ({"share": share}, {"key": third.public.hex()}, {"key": third.public.hex(), "share": share}):

            def change(by: str, frame: dict[str, Any], who: str = who, changes: Any = changes) -> dict[str, Any]:
                shown = frame.get("identity")
                return frame | {"identity": shown | changes} if by == who and shown else frame

            with pytest.raises(HandshakeError, match=r"does not (know|have)|not the one"):
                meet(*proofs(), change)

    insider: list[identity.KeyExchange] = []

    def in_own_name(by: str, frame: dict[str, Any]) -> dict[str, Any]:
        """One whom both ends know puts its own key in the place of the connector's, and a signature that is right."""
        if by == CONNECTOR and "identity" in frame:
            return frame | {"identity": frame["identity"] | {"key": third.public.hex()}}
        if by == LISTENER and "identity" in frame:
            insider.append(signer(third, frame))
        if by == CONNECTOR and "signature" in frame:
            return frame | {"signature": insider[0].signature(bytes(64))}
        return frame

    with pytest.raises(HandshakeError, match="does not have the key"):
        meet(*proofs(), in_own_name)


def signer(who: Identity, hello: dict[str, Any]) -> identity.KeyExchange:
    """Whoever has heard a listener, and has a key that is known."""
    meeting = identity.KeyExchange(who, CONNECTOR, ("b",))
    meeting.hear(hello["identity"], bytes(64))
    return meeting


def test_keys_and_nonces_are_in_what_is_made_and_signed(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the same shares between other ends, or in another handshake, are of no use."""
    people("a", b="b", c="c")
    listener = Identity(people("b", a="a", c="c"))
    monkeypatch.setattr(identity.secrets, "token_bytes", bytes)
    share = _core.x25519_public(b"\1" * 32).hex()
    made, signed = set(), set()
    for name in ("a", "c"):
        for salt in (bytes(64), bytes(63) + b"\1"):
            meeting = identity.KeyExchange(listener, LISTENER)
            made.add(meeting.hear({"key": Identity(people(name)).public.hex(), "share": share}, salt))
            signed.add(meeting.signature(salt))
    assert len(made) == len(signed) == 4


JUNK: list[Any] = [
    None,
    0,
    -1,
    True,
    "",
    "0",
    "zz" * 32,
    "00" * 32,
    "00" * 64,
    "0" * 63,
    "é\ud800",
    [],
    {},
    [[[]]],
    1e308,
]


@pytest.mark.parametrize("kind", ["keys", "secret"])
def test_no_frame_does_more_than_end_it(proofs: Callable[[], tuple[Authenticator, Authenticator]], kind: str) -> None:
    """A seeded fuzzer: fields dropped, replaced, flipped and swapped, at either end, at every step. Whatever is not
    what was said is refused, and by nothing but a HandshakeError."""
    draw = random.Random(5)
    if kind == "secret":
        proofs = lambda: (Authenticator(CONNECTOR, b"both know it"), Authenticator(LISTENER, b"both know it"))  # noqa: E731

    def hurt(frame: dict[str, Any]) -> dict[str, Any]:
        changed = json.loads(json.dumps(frame))
        into = changed["identity"] if "identity" in changed and draw.random() < 0.5 else changed
        name = draw.choice(sorted(into))
        value = into[name]
        kind = draw.randrange(4)
        if kind == 0:
            del into[name]
        elif kind == 1 or not isinstance(value, str):
            into[name] = draw.choice([junk for junk in JUNK if junk != value or type(junk) is not type(value)])
        elif kind == 2:
            at = draw.randrange(len(value))
            into[name] = value[:at] + ("0" if value[at] != "0" else "1") + value[at + 1 :]
        else:
            into[name] = value[1:] + value[:1] if value[1:] + value[:1] != value else value + "0"
        return changed

    for _ in range(400):
        step, left = draw.randrange(5), iter(range(5))
        with pytest.raises(HandshakeError):
            meet(*proofs(), lambda _, frame: hurt(frame) if next(left) == step else frame)  # noqa: B023


def test_a_stranger_costs_no_exponentiation(
    proofs: Callable[[], tuple[Authenticator, Authenticator]], monkeypatch: Any
) -> None:
    """Who shows no key that is known gets an answer before anything is computed for it."""
    _, listener = proofs()
    shown = {"key": "11" * 32, "share": "09" + "00" * 31}
    for name in ("x25519", "x25519_public", "ed25519_sign", "ed25519_verify"):
        monkeypatch.setattr(_core, name, lambda *_: pytest.fail("computed something for a stranger"))
    steps = welcome(listener, lambda offer: offer)
    next(steps)
    with pytest.raises(HandshakeError, match="does not have"):
        steps.send({"softmrc": 3, "nonce": "00" * 32, "sealed": True, "identity": shown})


def test_shares_that_leave_no_choice(proofs: Callable[[], tuple[Authenticator, Authenticator]]) -> None:
    def change(by: str, frame: dict[str, Any]) -> dict[str, Any]:
        return frame | {"identity": frame["identity"] | {"share": "00" * 32}} if "identity" in frame else frame

    with pytest.raises(HandshakeError, match="leaves no choice"):
        meet(*proofs(), change)


def test_a_recorded_caller_gets_nowhere(people: People) -> None:
    """Its hello and its offer, word by word, at the listener that took them."""
    a, b = people("a", b=HOST), people("b", a="alpha")
    with listen(memory=bytearray(64), identity=b) as listener, socket.create_server((HOST, 0)) as middle:
        said: list[bytes] = []

        def pass_on(source: socket.socket, target: socket.socket, keep: bool) -> None:
            with suppress(OSError):
                while data := source.recv(1 << 16):
                    said.extend([data] * keep)
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)

        def carry() -> None:
            with middle.accept()[0] as near, socket.create_connection((HOST, listener.port)) as far:
                back = threading.Thread(target=pass_on, args=(far, near, False))
                back.start()
                pass_on(near, far, True)
                back.join(LIMIT_S)

        thread = threading.Thread(target=carry)
        thread.start()
        with connect(HOST, middle.getsockname()[1], identity=a), listener.accept(LIMIT_S):
            pass
        thread.join(LIMIT_S)
        with refusing(listener), visit(listener) as sock:
            sock.sendall(b"".join(said))
            told = heard(sock)
            assert b"regions" not in told and b"the secret is not the same" in told
        with refusing(listener), visit(listener) as sock:  # nor does who shows a key that is not its own
            sock.sendall(framed({"softmrc": 3, "nonce": "0" * 64, "sealed": True, "identity": shown_by(a)}))
            sock.shutdown(socket.SHUT_WR)
            assert b"regions" not in heard(sock)


def shown_by(folder: Path) -> dict[str, Any]:
    return {"key": Identity(folder).public.hex(), "share": "09" + "00" * 31}


# Files.


@pytest.mark.parametrize(
    ("name", "mode", "words"),
    [
        (KEY, 0o640, "its owner alone can read: chmod 600"),
        (KEY, 0o604, "its owner alone can read"),
        (KEY, 0o620, "its owner alone can read"),
        (KNOWN, 0o660, "nobody else can write: chmod go-w"),
        (KNOWN, 0o602, "nobody else can write"),
    ],
)
def test_files_that_others_can_get_at(people: People, name: str, mode: int, words: str) -> None:
    a = people("a", a=HOST)
    (a / name).chmod(mode)
    with pytest.raises(ConfigError, match=words):
        listen(identity=a)
    (a / name).chmod(0o600)
    with listen(identity=a) as listener, connect(HOST, listener.port, identity=a):
        (a / name).chmod(mode)
        if name == KNOWN:  # a listener looks again at every visitor
            with pytest.raises((ConfigError, RemoteError)):
                connect(HOST, listener.port, identity=a)
    if name == KNOWN:
        (a / name).chmod(0o644)
        Identity(a)


@needs.ROOT
def test_files_that_are_anothers(people: People) -> None:
    a = people("a", a=HOST)
    os.chown(a / KEY, 12345, 12345)
    with pytest.raises(ConfigError, match="its owner alone can read"):
        Identity(a)


@pytest.mark.parametrize(
    "text",
    [
        b"alpha",
        b"alpha 00",
        b"alpha " + b"0" * 63,
        b"alpha," + b" " + b"0" * 64,
        b"a b " + b"0" * 64,
        b"\xff " + b"0" * 64,
    ],
    ids=range(6),
)
def test_a_file_of_known_peers_that_is_none(people: People, text: bytes) -> None:
    a = people("a", a=HOST)
    (a / KNOWN).write_bytes(text)
    with pytest.raises(ConfigError, match=r"known_peers(:1)?' is not allowed"):
        Identity(a)


def test_keys_that_are_none(people: People, tmp_path: Path) -> None:
    a = people("a")
    for text in ("", "key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        (a / KEY).write_text(text)
        with pytest.raises(ConfigError, match="an Ed25519 key in PEM"):
            Identity(a)
    (a / KEY).unlink()
    for folder in (a, tmp_path / "nowhere", "/dev/null"):
        with pytest.raises(ConfigError, match="a file that can be read"):
            connect(HOST, 1, identity=folder)
    for odd in ("", 5):
        with pytest.raises(ConfigError, match="a folder with a key"):
            connect(HOST, 1, identity=odd)  # type: ignore[arg-type]


def test_a_key_is_never_replaced(people: People) -> None:
    a = people("a")
    before = (a / KEY).read_bytes()
    with pytest.raises(ConfigError, match="is there already"):
        identity.make(a)
    assert (a / KEY).read_bytes() == before
    assert [(a / name).stat().st_mode & 0o777 for name in (KEY, KNOWN)] == [0o600, 0o600]


def test_where_nothing_can_be_signed_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "can_seal", lambda: False)
    with pytest.raises(ConfigError, match="built without sealing"):
        identity.make(tmp_path / "a")
    assert not (tmp_path / "a").exists()


@needs.tools("openssl")
def test_openssl_reads_our_keys_and_we_read_its(people: People) -> None:
    a = people("a")
    command = ["openssl", "pkey", "-in", str(a / KEY), "-pubout", "-outform", "DER"]
    assert subprocess.run(command, capture_output=True, check=True).stdout.endswith(Identity(a).public)
    (a / KEY).unlink()
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(a / KEY)], check=True)
    (a / KEY).chmod(0o600)
    shown = subprocess.run(command, capture_output=True, check=True).stdout
    assert shown.endswith(Identity(a).public)
