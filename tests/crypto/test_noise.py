"""The Noise handshake: published vectors, a model, another implementation, and everything that is refused."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import parts
from softmrc import _core
from softmrc._core import Cipher
from softmrc.errors import InternalError

pytestmark = pytest.mark.skipif(not _core.can_seal(), reason="built without libcrypto")

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "noise.json").read_text())["vectors"]
TURNS = {"NNpsk0": 2, "XX": 3}  # messages of the handshake
PATTERNS = pytest.mark.parametrize("pattern", TURNS)
# X25519 gives zeros for these whatever the private key is, and for them with the highest bit set, which it ignores.
SMALL_ORDER = [
    bytes(32),
    b"\1" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
]


def end(
    pattern: str, is_initiator: bool, prologue: bytes = b"", key: bytes = b"", ephemeral: bytes | None = None
) -> Any:
    """One end; the psk is the same for both, and each has its own static key."""
    own = key or (bytes(range(32)) if pattern == "NNpsk0" else bytes([is_initiator]) * 32)
    return parts.NoiseHandshake(pattern, is_initiator, prologue, own, ephemeral)


def pair(pattern: str, prologue: bytes = b"") -> list[Any]:
    return [end(pattern, True, prologue), end(pattern, False, prologue)]


def shake(ends: list[Any], turns: int, payloads: list[bytes] | None = None) -> list[bytes]:
    """The first so many messages, from one to the other."""
    said = []
    for turn in range(turns):
        payload = payloads[turn] if payloads else b"payload %d" % turn
        assert ends[turn % 2].is_our_turn and not ends[1 - turn % 2].is_our_turn
        said.append(ends[turn % 2].write(payload))
        assert ends[1 - turn % 2].read(said[-1]) == payload
    return said


def sessions(ends: list[Any]) -> list[tuple[Any, Any, bytes, bytes]]:
    assert all(one.is_done and not one.is_our_turn for one in ends)
    return [one.take_session() for one in ends]


# Published answers.


def test_sha256_answers_as_pythons() -> None:
    for size in (0, 1, 55, 56, 64, 65, 1000):
        text = os.urandom(size)
        assert parts.sha256(text) == hashlib.sha256(text).digest()


def key_of(vector: dict[str, Any], side: str) -> bytes:
    return bytes.fromhex(vector[f"{side}_static"] if f"{side}_static" in vector else vector[f"{side}_psks"][0])


def end_of(vector: dict[str, Any], side: str) -> Any:
    return parts.NoiseHandshake(
        vector["protocol_name"].split("_")[1],
        side == "init",
        bytes.fromhex(vector[f"{side}_prologue"]),
        key_of(vector, side),
        bytes.fromhex(vector[f"{side}_ephemeral"]),
    )


EVERY_VECTOR = pytest.mark.parametrize("vector", VECTORS, ids=lambda one: f"{one['source'][:4]} {one['protocol_name']}")


@EVERY_VECTOR
@pytest.mark.parametrize("side", ["init", "resp"])
def test_each_end_says_and_understands_what_is_published(vector: dict[str, Any], side: str) -> None:
    """One end at a time, with the published messages of the other."""
    own, is_initiator = end_of(vector, side), side == "init"
    pattern = vector["protocol_name"].split("_")[1]
    said = [(bytes.fromhex(one["payload"]), bytes.fromhex(one["ciphertext"])) for one in vector["messages"]]
    for turn, (payload, message) in enumerate(said[: TURNS[pattern]]):
        assert own.is_our_turn == ((turn % 2 == 0) == is_initiator) and not own.is_done
        if own.is_our_turn:
            assert own.write(payload) == message
        else:
            assert own.read(message) == payload
    if pattern == "XX":
        assert own.remote_static() == _core.x25519_public(key_of(vector, "resp" if is_initiator else "init"))
    assert own.is_done
    send, receive, _, found = own.take_session()
    assert "handshake_hash" not in vector or found.hex() == vector["handshake_hash"]
    for turn, (payload, message) in enumerate(said[TURNS[pattern] :], TURNS[pattern]):
        if (turn % 2 == 0) == is_initiator:
            assert send.seal(b"", payload) == message
        else:
            assert receive.open(b"", message) == payload


# A model: the specification's own words in Python, with the primitives that have separate vectors.


def hkdf(ck: bytes, material: bytes, outputs: int) -> list[bytes]:
    key = hmac.digest(ck, material, "sha256")
    found = [b""]
    for number in range(1, outputs + 1):
        found.append(hmac.digest(key, found[-1] + bytes([number]), "sha256"))
    return found[1:]


class Model:
    """Only the initiator of NNpsk0, and what comes of its keys."""

    def __init__(self, psk: bytes, prologue: bytes, ephemeral: bytes) -> None:
        self.ephemeral = ephemeral
        self.ck = self.h = hashlib.sha256(b"Noise_NNpsk0_25519_ChaChaPoly_SHA256").digest()
        self.mix_hash(prologue)
        self.ck, mixed, self.k = hkdf(self.ck, psk, 3)
        self.mix_hash(mixed)

    def mix_hash(self, data: bytes) -> None:
        self.h = hashlib.sha256(self.h + data).digest()

    def mix_key(self, material: bytes) -> None:
        self.ck, self.k = hkdf(self.ck, material, 2)

    def write(self, payload: bytes) -> bytes:
        public = _core.x25519_public(self.ephemeral)
        self.mix_hash(public)
        self.mix_key(public)
        sealed = parts.aead_seal(Cipher.CHACHA20_POLY1305, self.k, bytes(12), self.h, payload)
        self.mix_hash(sealed)
        return public + sealed

    def read(self, message: bytes) -> bytes:
        self.mix_hash(message[:32])
        self.mix_key(message[:32])
        shared = parts.x25519(self.ephemeral, message[:32])
        assert shared is not None
        self.mix_key(shared)
        payload = parts.aead_open(Cipher.CHACHA20_POLY1305, self.k, bytes(12), self.h, message[32:])
        self.mix_hash(message[32:])
        return payload


@pytest.mark.parametrize("seed", range(20))
def test_a_model_agrees_and_so_do_the_exporters(seed: int) -> None:
    draw = random.Random(seed)
    psk, prologue, ephemeral = draw.randbytes(32), draw.randbytes(draw.randrange(40)), draw.randbytes(32)
    model, responder = Model(psk, prologue, ephemeral), end("NNpsk0", False, prologue, psk)
    assert responder.read(model.write(b"first")) == b"first"
    assert model.read(responder.write(b"second")) == b"second"
    send, receive, exporter, found = responder.take_session()
    to_responder, to_initiator, third = hkdf(model.ck, b"", 3)
    assert (exporter, found) == (third, model.h)
    for number in (0, 1):
        nonce = bytes(4) + number.to_bytes(8, "little")
        sealed = parts.aead_seal(Cipher.CHACHA20_POLY1305, to_responder, nonce, b"about", b"text")
        assert receive.open(b"about", sealed) == b"text"
        assert parts.aead_open(Cipher.CHACHA20_POLY1305, to_initiator, nonce, b"", send.seal(b"", b"back")) == b"back"


class Passive(Model):
    """Knows the psk, and reads a recorded handshake of which it has neither end's ephemeral key: `guess` is what it has
    in place of their shared secret."""

    def __init__(self, psk: bytes, prologue: bytes, said: list[bytes], guess: bytes) -> None:
        super().__init__(psk, prologue, bytes(32))
        first, second = said
        for message in (first, second):
            self.mix_hash(message[:32])
            self.mix_key(message[:32])
            if message is second:
                self.mix_key(guess)
            nonce = bytes(12)
            self.payload = parts.aead_open(Cipher.CHACHA20_POLY1305, self.k, nonce, self.h, message[32:])
            self.mix_hash(message[32:])


def test_a_secret_that_leaks_opens_no_recording() -> None:
    """Forward secrecy: the first message's tag can be checked with the secret, and nothing after that opens without an
    ephemeral key, which both ends forget."""
    draw = random.Random(1)
    psk, prologue, ephemeral = draw.randbytes(32), b"prologue", draw.randbytes(32)
    model, responder = Model(psk, prologue, ephemeral), end("NNpsk0", False, prologue, psk)
    first = model.write(b"")
    assert responder.read(first) == b""
    second = responder.write(b"")
    recorded = responder.take_session()[0].seal(b"", b"an offer")
    shared = parts.x25519(ephemeral, second[:32])
    publics = [first[:32], second[:32]]
    guesses = [bytes(32), psk, *publics, *(parts.x25519(psk, public) for public in publics)]
    for guess in [shared, *guesses]:
        thief = Passive(psk, prologue, [first, second], guess)
        _, to_initiator, _ = hkdf(thief.ck, b"", 3)
        found = parts.aead_open(Cipher.CHACHA20_POLY1305, to_initiator, bytes(12), b"", recorded)
        assert (thief.payload, found) == ((b"", b"an offer") if guess is shared else (None, None))


# Another implementation.


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@PATTERNS
@pytest.mark.parametrize("is_initiator", [True, False], ids=["initiator", "responder"])
def test_another_implementation_understands_ours(pattern: str, is_initiator: bool) -> None:
    connection = pytest.importorskip(
        "noise.connection", reason="noiseprotocol is not installed (pip install noiseprotocol)"
    )
    for seed in range(50):
        draw = random.Random(f"{pattern} {is_initiator} {seed}")
        prologue = draw.randbytes(draw.choice([0, 1, 32, 300]))
        keys = [draw.randbytes(32)] * 2 if pattern == "NNpsk0" else [draw.randbytes(32), draw.randbytes(32)]
        judge = connection.NoiseConnection.from_name(f"Noise_{pattern}_25519_ChaChaPoly_SHA256".encode())
        (judge.set_as_responder if is_initiator else judge.set_as_initiator)()
        if pattern == "NNpsk0":
            judge.set_psks(psk=keys[1])
        else:
            judge.set_keypair_from_private_bytes(connection.Keypair.STATIC, keys[1])
        judge.set_prologue(prologue)
        judge.start_handshake()
        symmetric, derive = judge.noise_protocol.symmetric_state, judge.noise_protocol.hkdf
        own = end(pattern, is_initiator, prologue, keys[0])
        for turn in range(TURNS[pattern]):
            payload = draw.randbytes(draw.choice([0, 1, 16, 1000]))
            if (turn % 2 == 0) == is_initiator:
                assert judge.read_message(own.write(payload)) == payload
            else:
                assert own.read(bytes(judge.write_message(payload))) == payload
        assert judge.handshake_finished and own.is_done
        if pattern == "XX":
            assert own.remote_static() == _core.x25519_public(keys[1])
        send, receive, exporter, found = own.take_session()
        assert found == judge.get_handshake_hash()
        assert exporter == derive(symmetric.ck, b"", 3)[2]
        for number in range(6):
            text = draw.randbytes(draw.choice([0, 1, 64, 5000]))
            if draw.random() < 0.5:
                assert judge.decrypt(send.seal(b"", text)) == text
            else:
                assert receive.open(b"", judge.encrypt(text)) == text, number


# What both ends have afterwards.


@PATTERNS
@settings(max_examples=40)
@given(prologue=st.binary(max_size=100), payloads=st.lists(st.binary(max_size=300), min_size=3, max_size=3))
def test_both_ends_have_the_same_session(pattern: str, prologue: bytes, payloads: list[bytes]) -> None:
    ends = pair(pattern, prologue)
    shake(ends, TURNS[pattern], payloads)
    (send, receive, exporter, found), (theirs, ours, their_exporter, their_hash) = sessions(ends)
    assert (exporter, found) == (their_exporter, their_hash) and exporter != found
    for number, text in enumerate(payloads):
        assert ours.nonce == send.nonce == number
        assert ours.open(b"a", send.seal(b"a", text)) == text
        assert receive.open(b"", theirs.seal(b"", text)) == text


@PATTERNS
def test_no_two_handshakes_have_anything_in_common(pattern: str) -> None:
    """Without keys that a test chooses, ephemeral ones are drawn."""
    found = set()
    for _ in range(20):
        ends = pair(pattern)
        found.update(shake(ends, TURNS[pattern], [b""] * 3))
        found.update(sessions(ends)[0][2:])
    assert len(found) == 20 * (TURNS[pattern] + 2)


def test_xx_shows_each_end_the_others_key() -> None:
    ends = pair("XX")
    shake(ends, 1)
    for one in ends:
        with pytest.raises(InternalError):
            one.remote_static()
    shake(ends[::-1], 1)
    assert ends[0].remote_static() == _core.x25519_public(bytes([0]) * 32)
    with pytest.raises(InternalError):
        ends[1].remote_static()
    shake(ends, 1)
    assert ends[1].remote_static() == _core.x25519_public(bytes([1]) * 32)
    for one in pair("NNpsk0"):
        with pytest.raises(InternalError):
            one.remote_static()


@PATTERNS
def test_messages_have_a_longest_size(pattern: str) -> None:
    for turn in range(TURNS[pattern]):
        ends = pair(pattern)
        shake(ends, turn)
        overhead = len(pair_after(pattern, turn)[turn % 2].write(b""))
        longest = os.urandom(parts.max_noise_message - overhead)
        speaker = pair_after(pattern, turn)[turn % 2]
        with pytest.raises(InternalError):
            speaker.write(longest + b"!")
        assert not speaker.is_our_turn and not speaker.is_done, "it was halfway through that message"
        message = ends[turn % 2].write(longest)
        assert len(message) == parts.max_noise_message and ends[1 - turn % 2].read(message) == longest
    first = end("XX", True)
    assert end("XX", False).read(first.write(b"") + bytes(parts.max_noise_message - 31)) is None
    ends = pair(pattern)
    shake(ends, TURNS[pattern])
    (send, *_), (_, receive, *_) = sessions(ends)
    longest = os.urandom(parts.max_noise_message - 16)
    with pytest.raises(InternalError):
        send.seal(b"", longest + b"!")
    sealed = send.seal(b"", longest)
    assert receive.open(b"", sealed + b"!") is None
    assert receive.open(b"", sealed) == longest


def pair_after(pattern: str, turns: int) -> list[Any]:
    ends = pair(pattern)
    shake(ends, turns)
    return ends


def test_an_end_says_only_what_is_next() -> None:
    """A caller that asks for something else has a fault; a peer that says something else is not heard."""
    for pattern, turns in TURNS.items():
        ends = pair(pattern)
        said = []
        for turn in range(turns):
            with pytest.raises(InternalError):
                ends[1 - turn % 2].write(b"")
            for one in ends:
                with pytest.raises(InternalError):
                    one.take_session()
            assert ends[turn % 2].read(said[-1] if said else bytes(32)) is None, "out of turn, it changes nothing"
            said.append(ends[turn % 2].write(b""))
            assert ends[1 - turn % 2].read(said[-1]) == b""
        for one in ends:
            assert all(one.read(message) is None for message in said)
            with pytest.raises(InternalError):
                one.write(b"")
            one.take_session()
            with pytest.raises(InternalError):
                one.take_session()


def test_a_cipher_without_a_key_does_nothing() -> None:
    ends = pair("NNpsk0")
    shake(ends, 2)
    send, *_ = sessions(ends)[0]
    send.seal(b"", b"")
    moved = send.moved()
    assert (send.nonce, moved.nonce) == (0, 1)
    for empty in (send, parts.NoiseCipher()):
        with pytest.raises(InternalError):
            empty.seal(b"", b"")
        with pytest.raises(InternalError):
            empty.open(b"", bytes(16))


def test_a_forked_child_encrypts_nothing() -> None:
    """It has the parent's keys and nonces."""
    ends, others = pair("NNpsk0"), pair("XX")
    shake(ends, 2)
    (send, *_), (_, receive, *_) = sessions(ends)
    child = os.fork()
    if child == 0:
        refused = 0
        for say in (lambda: send.seal(b"", b""), lambda: others[0].write(b"")):
            try:
                say()
            except InternalError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert receive.open(b"", send.seal(b"", b"parent")) == b"parent"
    shake(others, 3)


# What is refused.


def refuses(one: Any, message: bytes) -> bool:
    """Whether an end refuses that, for good."""
    if one.read(message) is not None:
        return False
    assert not one.is_our_turn and not one.is_done, "it cannot go on"
    with pytest.raises(InternalError):
        one.write(b"")
    with pytest.raises(InternalError):
        one.take_session()
    return True


def comes_to_nothing(pattern: str, turn: int, change: Callable[[bytes], bytes], draw: random.Random) -> None:
    """Where the message of this turn is changed, neither end is done that hears from the other afterwards: what is not
    refused at once was in the clear, and the next message is."""
    keys = [draw.randbytes(32) for _ in range(2)]
    ends = [end(pattern, one == 0, b"", b"", keys[one]) for one in range(2)]
    shake(ends, turn)
    message = ends[turn % 2].write(b"payload")
    changed = change(message)
    assert changed != message
    into = ends[1 - turn % 2]
    if refuses(into, changed):
        return
    assert pattern == "XX" and turn == 0
    assert refuses(ends[0], into.write(b""))


@PATTERNS
def test_no_bit_can_be_changed(pattern: str) -> None:
    draw = random.Random(1)
    for turn in range(TURNS[pattern]):
        size = len(pair_after(pattern, turn)[turn % 2].write(b"payload"))
        for bit in range(size * 8):

            def flip(message: bytes, at: int = bit) -> bytes:
                changed = bytearray(message)
                changed[at // 8] ^= 1 << at % 8
                return bytes(changed)

            comes_to_nothing(pattern, turn, flip, draw)


@PATTERNS
def test_no_byte_can_be_cut_off_or_added(pattern: str) -> None:
    draw = random.Random(2)
    for turn in range(TURNS[pattern]):
        size = len(pair_after(pattern, turn)[turn % 2].write(b"payload"))
        for cut in range(size):
            comes_to_nothing(pattern, turn, lambda message, cut=cut: message[:cut], draw)
            comes_to_nothing(pattern, turn, lambda message, cut=cut: message[cut + 1 :], draw)
        for more in (b"\0", bytes(16), bytes(70_000)):
            comes_to_nothing(pattern, turn, lambda message, more=more: message + more, draw)
            comes_to_nothing(pattern, turn, lambda message, more=more: more + message, draw)


@PATTERNS
def test_messages_of_other_steps_and_other_handshakes_are_refused(pattern: str) -> None:
    """Replays, with the same static keys and the same psk; and messages of the wrong step."""
    turns = TURNS[pattern]
    recorded = shake(pair(pattern), turns)
    for turn in range(turns):
        for number, message in enumerate(recorded):
            ends = pair_after(pattern, turn)
            ends[turn % 2].write(b"")
            into = ends[1 - turn % 2]
            if turn == 0 and (number == 0 or pattern == "XX"):
                # Nothing of the other end's can be in the first message: it is taken, and what comes after it is not.
                # In XX it is in the clear, so that all that is long enough is one.
                assert into.read(message) is not None
                assert refuses(ends[0], into.write(b""))
                if pattern == "XX":
                    assert refuses(into, recorded[2])
            else:
                assert refuses(into, message), (turn, number)


@PATTERNS
def test_both_need_the_same_prologue(pattern: str) -> None:
    for theirs in (b"", b"prologue\0", b"Prologue"):
        ends = [end(pattern, True, b"prologue"), end(pattern, False, theirs)]
        if pattern == "NNpsk0":
            assert refuses(ends[1], ends[0].write(b""))
        else:
            shake(ends, 1)
            assert refuses(ends[0], ends[1].write(b""))


def test_both_need_the_same_psk() -> None:
    for bit in (0, 100, 255):
        other = bytearray(range(32))
        other[bit // 8] ^= 1 << bit % 8
        assert refuses(end("NNpsk0", False, b"", bytes(other)), end("NNpsk0", True).write(b""))
    # Who has the first message of one that has the psk, and not the psk itself, cannot answer it.
    first = end("NNpsk0", True)
    first.write(b"")
    stranger = [end("NNpsk0", True, b"", bytes(32)), end("NNpsk0", False, b"", bytes(32))]
    shake(stranger, 1)
    assert refuses(first, stranger[1].write(b""))


def test_the_patterns_do_not_understand_each_other() -> None:
    assert refuses(end("NNpsk0", False), end("XX", True).write(bytes(16)))
    first, second = end("NNpsk0", True), end("XX", False)
    assert second.read(first.write(b"")) is not None
    assert refuses(first, second.write(b""))


def points() -> list[bytes]:
    return SMALL_ORDER + [point[:31] + bytes([point[31] | 0x80]) for point in SMALL_ORDER]


@pytest.mark.parametrize("point", points(), ids=lambda point: point.hex()[:8] + point.hex()[-2:])
def test_public_keys_of_small_order_are_refused(point: bytes) -> None:
    assert parts.x25519(os.urandom(32), point) is None
    # In the clear, as a first message and as the key in the second.
    assert refuses(end("XX", False), point)
    assert refuses(end("XX", False), point + b"payload")
    ends = pair_after("XX", 1)
    assert refuses(ends[0], point + ends[1].write(b"")[32:])
    # From one that has the psk, so that only the key itself is wrong.
    psk = bytes(range(32))
    forger = Model(psk, b"", bytes(32))
    forger.mix_hash(point)
    forger.mix_key(point)
    sealed = parts.aead_seal(Cipher.CHACHA20_POLY1305, forger.k, bytes(12), forger.h, b"payload")
    assert refuses(end("NNpsk0", False), point + sealed)


def test_a_static_key_of_small_order_is_refused() -> None:
    """It would make `se` known to everybody: a forger could be that key's owner. Noise's own model of an initiator."""
    for point in points():
        responder = end("XX", False)
        ephemeral = os.urandom(32)
        public = _core.x25519_public(ephemeral)
        model = Model.__new__(Model)
        model.ck = model.h = b"Noise_XX_25519_ChaChaPoly_SHA256"
        for data in (b"", public, b""):
            model.mix_hash(data)
        assert responder.read(public) == b""
        answer = responder.write(b"")
        model.mix_hash(answer[:32])
        shared = parts.x25519(ephemeral, answer[:32])
        assert shared is not None
        model.mix_key(shared)
        static = parts.aead_open(Cipher.CHACHA20_POLY1305, model.k, bytes(12), model.h, answer[32:80])
        assert static == _core.x25519_public(bytes(32))
        model.mix_hash(answer[32:80])
        shared = parts.x25519(ephemeral, static)
        assert shared is not None
        model.mix_key(shared)
        model.mix_hash(answer[80:])
        seal = partial(parts.aead_seal, Cipher.CHACHA20_POLY1305)
        sealed = seal(model.k, bytes(4) + (1).to_bytes(8, "little"), model.h, point)
        model.mix_hash(sealed)
        model.mix_key(bytes(32))
        assert refuses(responder, sealed + seal(model.k, bytes(12), model.h, b""))
        with pytest.raises(InternalError):
            responder.remote_static()


# Sessions.


@PATTERNS
@pytest.mark.parametrize("seed", range(5))
def test_a_session_takes_each_message_once_and_in_order(pattern: str, seed: int) -> None:
    draw = random.Random(seed)
    ends = pair(pattern)
    shake(ends, TURNS[pattern])
    (send, own, *_), (_, receive, *_) = sessions(ends)
    sent = [(draw.randbytes(4), draw.randbytes(draw.randrange(50))) for _ in range(8)]
    sealed = [send.seal(*one) for one in sent]
    for number, (about, text) in enumerate(sent):
        for other, message in enumerate(sealed):
            if other != number:
                assert receive.open(sent[other][0], message) is None, "out of order, or again"
        for bit in range(len(sealed[number]) * 8):
            changed = bytearray(sealed[number])
            changed[bit // 8] ^= 1 << bit % 8
            assert receive.open(about, bytes(changed)) is None
        for size in range(len(sealed[number])):
            assert receive.open(about, sealed[number][:size]) is None
        assert receive.open(about, sealed[number] + b"\0") is None
        assert receive.open(about + b"\0", sealed[number]) is None
        assert own.open(about, sealed[number]) is None, "the other direction has another key"
        assert receive.nonce == number, "what is not authentic uses up nothing"
        assert receive.open(about, sealed[number]) == text
