"""An attacker between the two ends of a handshake, who changes, drops, repeats and replaces messages; and messages of
ends that do not fit together. Without sockets."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from liar import NONE, OF_KEY, OF_SECRET, SESSION, frames, hello

import parts
from softmrc import _core
from softmrc._core import Credentials, HandshakeEvent
from softmrc.errors import HandshakeError

pytestmark = pytest.mark.skipif(not _core.can_seal(), reason="built without libcrypto")

if not _core.can_seal():
    pytest.skip("built without libcrypto", allow_module_level=True)
CONNECTOR, LISTENER = "connector", "listener"
ROLES = (CONNECTOR, LISTENER)
MTU = 2048
LONGEST_MESSAGE = 65_535  # of Noise
Frames = list[tuple[str, bytes]]  # who said what
Change = Callable[[str, int, bytes], bytes]  # who says it, the how-manieth of its frames that is, and the frame
KEYS = {name: number.to_bytes(1, "big") * 32 for number, name in enumerate(("connector", "listener", "third"), 1)}
KINDS = ["none", "secret", "key"]
AUTHENTICATED = ["secret", "key"]
# That a connector and a listener say, until both are done.
COUNT = {CONNECTOR: 4, LISTENER: 3}
PLACES = [(role, number) for role in ROLES for number in range(COUNT[role])]


def credentials(kind: str) -> dict[str, Credentials]:
    """Of both ends. None stays: the native module would count what is there at the end as leaked."""
    made = {
        "none": lambda role: Credentials.none(),
        "secret": lambda role: Credentials.of_secret(b"both know it"),
        "key": lambda role: Credentials.of_key(KEYS[role]),
    }[kind]
    return {role: made(role) for role in ROLES}


class Meeting:
    """A handshake, as far as it goes: who said what, and why either end has refused the other."""

    def __init__(self, own: dict[str, Credentials], change: Change = lambda who, number, frame: frame) -> None:
        self.ends = {role: parts.Handshake(role == CONNECTOR, own[role]) for role in ROLES}
        self.said: Frames = []
        self.why: dict[str, str] = {}
        self.seen_keys: dict[str, bytes] = {}
        self._change = change
        while self._pass_on(CONNECTOR, LISTENER) + self._pass_on(LISTENER, CONNECTOR):
            pass

    @property
    def is_done(self) -> bool:
        return not self.why and all(end.is_done for end in self.ends.values())

    def _pass_on(self, who: str, to: str) -> int:
        out = frames(self.ends[who].take_outgoing())
        for frame in out:
            number = sum(by == who for by, _ in self.said)
            self.said.append((who, frame))
            if to not in self.why:
                self._hear(to, self._change(who, number, frame))
        return len(out)

    def _hear(self, who: str, data: bytes) -> None:
        end = self.ends[who]
        try:
            end.on_bytes(data)
            while (event := end.next_event()) is not HandshakeEvent.NONE:
                self._answer(who, end, event)
        except HandshakeError as refusal:
            self.why[who] = str(refusal)
            end.refuse(str(refusal), refusal.message_to_peer)

    def _answer(self, who: str, end: Any, event: HandshakeEvent) -> None:
        if event is HandshakeEvent.IDENTIFIED:
            self.seen_keys[who] = end.peer_key
            end.allow()
            if who == CONNECTOR:
                end.offer(b"of the connector")
        elif event is HandshakeEvent.OFFERED and who == LISTENER:
            assert end.content == b"of the connector"
            end.offer(b"of the listener")
        elif event is HandshakeEvent.OFFERED:
            assert end.content == b"of the listener"
            end.ready(MTU, True)
        elif event is HandshakeEvent.READY:
            assert end.mtu == MTU
            end.finish(True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_handshake_that_nobody_disturbs(kind: str) -> None:
    """Both make the same secret of it, another one each time, and no listener on the wire does."""
    made = set()
    for _ in range(3):
        meeting = Meeting(credentials(kind))
        connector, listener = meeting.ends.values()
        assert meeting.is_done and connector.exporter == listener.exporter
        assert {role: sum(by == role for by, _ in meeting.said) for role in ROLES} == COUNT
        assert (connector.exporter is None) is (kind == "none")
        if kind != "none":
            text = b"".join(frame for _, frame in meeting.said)
            assert connector.exporter not in text and b"of the" not in text
            made.add(connector.exporter)
        assert connector.goodbye() == listener.goodbye_of_peer() and listener.goodbye() == connector.goodbye_of_peer()
    assert len(made) == 3 * (kind != "none")


def test_each_end_learns_the_key_of_the_other() -> None:
    seen = Meeting(credentials("key")).seen_keys
    assert seen == {CONNECTOR: _core.x25519_public(KEYS[LISTENER]), LISTENER: _core.x25519_public(KEYS[CONNECTOR])}


def test_bytes_may_come_in_any_pieces() -> None:
    for kind in KINDS:
        whole = Meeting(credentials(kind))
        connector, listener = (parts.Handshake(role == CONNECTOR, credentials(kind)[role]) for role in ROLES)
        for byte in connector.take_outgoing():
            listener.on_bytes(bytes([byte]))
        assert len(listener.take_outgoing()) == len(whole.said[1][1])


# An attacker on the path.


@pytest.mark.parametrize("kind", AUTHENTICATED)
def test_no_byte_can_be_changed(kind: str) -> None:
    """Of any frame. What is announced as longer than it is waits for the rest until the time is up."""
    draw = random.Random(7)
    for who, number in PLACES:
        at, size = 0, 1
        while at < size:

            def change(by: str, count: int, frame: bytes, who: str = who, number: int = number, at: int = at) -> bytes:
                nonlocal size
                if (by, count) != (who, number):
                    return frame
                size = len(frame)
                return frame[:at] + bytes([frame[at] ^ 1 << draw.randrange(8)]) + frame[at + 1 :]

            meeting = Meeting(credentials(kind), change)
            assert not meeting.is_done
            assert meeting.why or at < 4, (who, number, at)
            at += 1


EDITS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "drop": lambda frame, _: b"",
    "repeat": lambda frame, _: frame * 2,
    "cut": lambda frame, _: frame[:-1],
    "shorten": lambda frame, _: struct.pack(">I", len(frame) - 5) + frame[4:-1],
    "lengthen": lambda frame, more: struct.pack(">I", len(frame) - 4 + len(more)) + frame[4:] + more,
    "replace": lambda frame, more: struct.pack(">I", len(more)) + more,
    "another kind": lambda frame, more: frame[:4] + more[:1] + frame[5:],
    "precede": lambda frame, more: struct.pack(">I", len(more)) + more + frame,
}


@given(
    st.sampled_from(AUTHENTICATED),
    st.sampled_from(PLACES),
    st.sampled_from(sorted(EDITS)),
    st.binary(min_size=1, max_size=600),
)
@settings(max_examples=300, deadline=None)
def test_nothing_in_the_middle_does_more_than_end_it(kind: str, where: tuple[str, int], edit: str, more: bytes) -> None:
    """By nothing but a HandshakeError, at either end, or by silence."""
    changed: list[bool] = []

    def change(by: str, count: int, frame: bytes) -> bytes:
        if (by, count) != where:
            return frame
        made = EDITS[edit](frame, more)
        # What comes after an end's last frame is of the connection, no longer of the handshake.
        changed.append(made != frame and not (made.startswith(frame) and count == COUNT[by] - 1))
        return made

    meeting = Meeting(credentials(kind), change)
    assert meeting.is_done is not changed[0]


def in_a_frame(body: bytes) -> bytes:
    return struct.pack(">IB", len(body) + 1, SESSION) + body


@pytest.mark.parametrize("size", [65_517, 65_518, 65_519, 200_000])
@pytest.mark.parametrize("kind", AUTHENTICATED)
def test_a_long_offer_arrives_whole_or_not_at_all(kind: str, size: int) -> None:
    """It is several messages of Noise, each of which is authentic."""
    for cuts in (False, True):
        connector, listener = (parts.Handshake(role == CONNECTOR, credentials(kind)[role]) for role in ROLES)
        for told, by in ((listener, connector), (connector, listener)):
            told.on_bytes(by.take_outgoing())
            told.next_event()
        connector.allow()
        listener.on_bytes(connector.take_outgoing())
        assert listener.next_event() is HandshakeEvent.IDENTIFIED
        listener.allow()
        connector.offer(bytes(size))
        body = connector.take_outgoing()[5:]
        if cuts and len(body) > LONGEST_MESSAGE:
            with pytest.raises(HandshakeError, match="not authentic"):
                listener.on_bytes(in_a_frame(body[:LONGEST_MESSAGE]) + in_a_frame(body[LONGEST_MESSAGE:]))
        else:
            listener.on_bytes(in_a_frame(body))
            assert listener.next_event() is HandshakeEvent.OFFERED and listener.content == bytes(size)


@pytest.mark.parametrize("kind", AUTHENTICATED)
def test_what_was_said_before_is_worth_nothing(kind: str) -> None:
    """Any of the frames of an earlier handshake in the place of a later one's, alone or all of one end."""
    earlier = Meeting(credentials(kind)).said
    for who in ROLES:
        old = [frame for by, frame in earlier if by == who]
        for replaced in [{number} for number in range(len(old))] + [set(range(len(old)))]:

            def change(by: str, count: int, frame: bytes, who: str = who, old: Any = old, new: Any = replaced) -> bytes:
                return old[count] if by == who and count in new else frame

            meeting = Meeting(credentials(kind), change)
            assert not meeting.is_done and meeting.why


@pytest.mark.parametrize("kind", AUTHENTICATED)
def test_a_recorded_hello_is_not_answered_with_an_offer(kind: str) -> None:
    """And a listener that has not heard more than it has not authenticated anybody."""
    first = Meeting(credentials(kind)).said[0][1]
    listener = parts.Handshake(False, credentials(kind)[LISTENER])
    listener.on_bytes(first)
    assert listener.next_event() is HandshakeEvent.NONE
    (answer,) = frames(listener.take_outgoing())
    assert answer[4:5] == b"H"
    with pytest.raises(HandshakeError):
        listener.on_bytes(Meeting(credentials(kind)).said[2][1])
    assert not listener.is_authenticated and listener.exporter is None


def test_a_guess_of_the_secret_can_be_tried_on_a_recorded_hello() -> None:
    """Without asking anybody: so a secret is to be long and random."""
    recorded = Meeting(credentials("secret")).said[0][1]

    def is_right(guess: bytes) -> bool:
        listener = parts.Handshake(False, Credentials.of_secret(guess))
        try:
            listener.on_bytes(recorded)
        except HandshakeError:
            return False
        return True

    guesses = [b"password", b"both know", b"both know it", b"both know it!"]
    assert [guess for guess in guesses if is_right(guess)] == [b"both know it"]


@pytest.mark.parametrize("kind", AUTHENTICATED)
def test_what_an_end_has_said_comes_back_to_it(kind: str) -> None:
    connector = parts.Handshake(True, credentials(kind)[CONNECTOR])
    with pytest.raises(HandshakeError, match=r"does not know the secret|sent no usable key"):
        connector.on_bytes(connector.take_outgoing())


def test_somebody_with_a_key_is_seen_as_who_it_is() -> None:
    """An attacker between two that authenticate by keys is seen as itself, or not at all."""
    with_connector = Meeting(
        {CONNECTOR: Credentials.of_key(KEYS[CONNECTOR]), LISTENER: Credentials.of_key(KEYS["third"])}
    )
    assert with_connector.seen_keys[CONNECTOR] == _core.x25519_public(KEYS["third"])
    for number in range(2):

        def change(by: str, count: int, frame: bytes, number: int = number) -> bytes:
            return with_connector.said[[0, 2][number]][1] if by == CONNECTOR and count == number else frame

        meeting = Meeting(credentials("key"), change)
        assert not meeting.is_done and meeting.why


# Ends that do not go together.


def changed_hello(who: str, **words: int) -> Change:
    """As an end of another version says it, whose first frame that is."""
    old = {"version": _core.HANDSHAKE_VERSION, "wire": _core.WIRE_VERSION} | words
    head = hello(NONE, version=old["version"], wire=old["wire"])[4:-1]
    return lambda by, count, frame: frame[:4] + head + frame[4 + len(head) :] if by == who and count == 0 else frame


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("who", ROLES)
@pytest.mark.parametrize(("word", "what"), [("version", "handshake"), ("wire", "packets")])
def test_versions_are_reported_at_both_ends(kind: str, who: str, word: str, what: str) -> None:
    ours = {"version": _core.HANDSHAKE_VERSION, "wire": _core.WIRE_VERSION}[word]
    for other in (0, ours - 1, ours + 1, 0xFFFF):
        meeting = Meeting(credentials(kind), changed_hello(who, **{word: other}))
        end = "install the same SoftMRC on both"
        sides = {
            who: f"refused: this side speaks version {ours} of the {what}, yours is {other}: {end}",
            ROLES[who == CONNECTOR]: f"speaks version {other} of the {what}, this side version {ours}: {end}",
        }
        assert meeting.why == sides


NAMES = {"none": "neither a secret nor a key", "secret": "a secret", "key": "a key"}


@pytest.mark.parametrize(("mine", "theirs"), [(a, b) for a in KINDS for b in KINDS if a != b])
def test_other_credentials_are_reported_at_both_ends(mine: str, theirs: str) -> None:
    meeting = Meeting({CONNECTOR: credentials(mine)[CONNECTOR], LISTENER: credentials(theirs)[LISTENER]})
    remedy = "set the same secret (SOFTMRC_SECRET) on both sides, or a key (SOFTMRC_IDENTITY) on both"
    assert meeting.why == {
        LISTENER: f"has set {NAMES[mine]}, this side has set {NAMES[theirs]}: {remedy}",
        CONNECTOR: f"refused: your side has set {NAMES[mine]}, its side has set {NAMES[theirs]}: {remedy}",
    }


def test_another_secret_is_reported_at_both_ends() -> None:
    meeting = Meeting(credentials("secret") | {LISTENER: Credentials.of_secret(b"another")})
    assert meeting.why == {
        LISTENER: "does not know the secret",
        CONNECTOR: "refused: the secret is not the same on both sides",
    }


@pytest.mark.parametrize("kind", [OF_SECRET, OF_KEY])
def test_keys_of_small_order_are_none(kind: int) -> None:
    own = credentials("secret" if kind == OF_SECRET else "key")[LISTENER]
    for key in (bytes(32), b"\1" + bytes(31)):
        listener = parts.Handshake(False, own)
        with pytest.raises(HandshakeError, match=r"does not know the secret|sent no usable key"):
            listener.on_bytes(hello(kind, key + bytes(16) * (kind == OF_SECRET)))


# Goodbyes.


@pytest.mark.parametrize("kind", AUTHENTICATED)
def test_a_goodbye_is_of_one_handshake_and_of_one_side(kind: str) -> None:
    ends = [end for _ in range(2) for end in Meeting(credentials(kind)).ends.values()]
    assert len({end.goodbye() for end in ends}) == 4


def test_where_nobody_is_authenticated_no_goodbye_is_expected() -> None:
    for end in Meeting(credentials("none")).ends.values():
        assert end.goodbye() == end.goodbye_of_peer() == b""
