"""Ends that authenticate with their own keys: known peers connect; others get an error message, which both ends
see."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from liar import LIMIT_S, is_left_as_it_was

import needs
from softmrc import _core
from softmrc.connection import Connection, Listener, connect, identity, listen
from softmrc.connection.bootstrap import credentials_of
from softmrc.connection.identity import KEY, KNOWN, Identity
from softmrc.errors import ConfigError, RemoteError

pytestmark = pytest.mark.skipif(not _core.can_seal(), reason="needs libcrypto")

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
    """No client gets in during the block, and nothing is kept of those that tried."""
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
    with pytest.raises(ConfigError, match="cannot be combined with a secret"):
        credentials_of("given", a)


def test_who_is_not_known_hears_so(people: People) -> None:  # spec: identities
    a, b = people("a", b=HOST), people("b")
    key = Identity(a).public.hex()
    with listen(memory=bytearray(64), identity=b) as listener:
        with refusing(listener), pytest.raises(RemoteError, match=f"refused: your key {key} is not known here"):
            connect(HOST, listener.port, identity=a)
        assert f"has the key {key}, which {b / KNOWN} does not have" in listener.refused.reasons[-1]
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


@pytest.mark.parametrize("connector_has_it", [False, True])
def test_a_key_at_one_end_and_a_secret_at_the_other(people: People, connector_has_it: bool) -> None:
    a = people("a", a=HOST)
    mine, theirs = {"identity": a}, {"secret": "s"}
    if not connector_has_it:
        mine, theirs = theirs, mine
    for other in ({}, theirs):
        with listen(memory=bytearray(64), **other) as listener:
            with (
                refusing(listener),
                pytest.raises(RemoteError, match=r"refused: your side has set .* set the same secret"),
            ):
                connect(HOST, listener.port, **mine)
            assert "set the same secret" in listener.refused.reasons[-1]


# Files.


@pytest.mark.parametrize(
    ("name", "mode", "words"),
    [
        (KEY, 0o640, "its owner alone can read: chmod 600"),
        (KEY, 0o604, "its owner alone can read"),
        (KEY, 0o620, "its owner alone can read"),
        (KNOWN, 0o660, "only its owner can write: chmod go-w"),
        (KNOWN, 0o602, "only its owner can write"),
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
        if name == KNOWN:  # a listener reads it again for every client
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
    with pytest.raises(ConfigError, match=r"known_peers"):
        Identity(a)


@pytest.mark.parametrize("name", [KEY, KNOWN])
def test_a_pipe_in_place_of_a_file_is_refused_at_once(people: People, name: str) -> None:
    a = people("a")
    (a / name).unlink()
    os.mkfifo(a / name, 0o600)
    command = [sys.executable, "-c", f"from softmrc.connection.identity import Identity; Identity({str(a)!r})"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert "must be a regular file" in result.stderr


def test_a_key_may_be_written_with_capital_letters(people: People) -> None:
    a = people("a")
    (a / KNOWN).write_text(f"{HOST} {Identity(a).public.hex().upper()}\n")
    assert list(Identity(a).known()) == [Identity(a).public]


def test_keys_that_are_none(people: People, tmp_path: Path) -> None:
    a = people("a")
    for text in ("", "key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        (a / KEY).write_text(text)
        with pytest.raises(ConfigError, match="an X25519 key in PEM"):
            Identity(a)
    (a / KEY).unlink()
    for folder in (a, tmp_path / "nowhere", "/dev/null"):
        with pytest.raises(ConfigError, match=r"has no key|no such file"):
            connect(HOST, 1, identity=folder)
    for odd in ("", 5):
        with pytest.raises(ConfigError, match="a folder with a key"):
            connect(HOST, 1, identity=odd)  # type: ignore[arg-type]


def test_a_key_is_never_replaced(people: People) -> None:
    a = people("a")
    before = (a / KEY).read_bytes()
    with pytest.raises(ConfigError, match="has a key already"):
        identity.make(a)
    assert (a / KEY).read_bytes() == before
    assert [(a / name).stat().st_mode & 0o777 for name in (KEY, KNOWN)] == [0o600, 0o600]


def test_without_libcrypto_no_key_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "can_seal", lambda: False)
    with pytest.raises(ConfigError, match="needs libcrypto"):
        identity.make(tmp_path / "a")
    assert not (tmp_path / "a").exists()


@needs.tools("openssl")
def test_openssl_reads_our_keys_and_we_read_its(people: People) -> None:
    a = people("a")
    command = ["openssl", "pkey", "-in", str(a / KEY), "-pubout", "-outform", "DER"]
    assert subprocess.run(command, capture_output=True, check=True).stdout.endswith(Identity(a).public)
    (a / KEY).unlink()
    subprocess.run(["openssl", "genpkey", "-algorithm", "x25519", "-out", str(a / KEY)], check=True)
    (a / KEY).chmod(0o600)
    shown = subprocess.run(command, capture_output=True, check=True).stdout
    assert shown.endswith(Identity(a).public)
