"""What closes a packet with a cipher: known answers, tampering, numbers used once, keys replaced on the run."""

from __future__ import annotations

import os
import random
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealed_packets import QPN, SECRET, WRITES, heard, inbound, numbered, of_every_opcode, outbound

import parts
from softmrc import _core
from softmrc._core import Cipher, Opened
from softmrc.connection.keys import KeyShare, PeerEncryption
from softmrc.errors import InternalError

pytestmark = pytest.mark.skipif(not _core.can_seal(), reason="built without libcrypto")

VECTORS = tomllib.loads((Path(__file__).parent / "vectors.toml").read_text())
SECOND_PS = 10**12
KEY_BYTES, HEADER_TAG_BYTES, TAG_BYTES = 12, 8, 16
BOTH = pytest.mark.parametrize("cipher", list(Cipher), ids=lambda cipher: cipher.name)


def hexes(vector: dict[str, str], *names: str) -> list[bytes]:
    return [bytes.fromhex(vector[name]) for name in names]


@pytest.mark.parametrize("vector", VECTORS["aead"], ids=lambda vector: vector["source"])
def test_ciphers_answer_as_published(vector: dict[str, str]) -> None:
    cipher = Cipher[vector["cipher"]]
    key, nonce, associated, text, hidden, tag = hexes(vector, "key", "nonce", "associated", "text", "hidden", "tag")
    assert parts.aead_seal(cipher, key, nonce, associated, text) == hidden + tag
    assert parts.aead_open(cipher, key, nonce, associated, hidden + tag) == text
    assert parts.aead_open(cipher, key, nonce, associated + b"!", hidden + tag) is None


@BOTH
def test_pieces_are_sealed_as_one(cipher: Cipher) -> None:
    draw = random.Random(1)
    for size in (0, 1, 15, 16, 17, 1024, 16_256):
        key, nonce, associated, text = (draw.randbytes(count) for count in (32, 12, 44, size))
        sealed = parts.aead_seal(cipher, key, nonce, associated, text)
        for cuts in ((0, size), (4, size), (draw.randint(0, size), size)):
            assert parts.aead_seal(cipher, key, nonce, associated, text, cuts) == sealed, (size, cuts)


@pytest.mark.parametrize("vector", VECTORS["x25519"], ids=lambda vector: vector["source"])
def test_x25519_answers_as_published(vector: dict[str, str]) -> None:
    own, public, others, shared = hexes(vector, "own", "public", "others", "shared")
    assert _core.x25519_public(own) == public
    assert parts.x25519(own, others) == shared


def test_x25519_refuses_points_that_leave_no_choice() -> None:
    assert parts.x25519(SECRET, bytes(32)) is None
    assert parts.x25519(SECRET, b"\1" + bytes(31)) is None


@pytest.mark.parametrize("vector", VECTORS["expand"], ids=lambda vector: vector["source"])
def test_hkdf_answers_as_published(vector: dict[str, str]) -> None:
    secret, label, block = hexes(vector, "secret", "label", "block")
    assert parts.seal_expand(secret, label) == block


def test_siphash_answers_as_published() -> None:
    """Of its paper's appendix, and of its authors' table for no bytes and for eight."""
    key = 0x0706050403020100, 0x0F0E0D0C0B0A0908
    assert parts.sip_hash(*key, bytes(range(15))) == 0xA129CA6149BE45E5
    assert parts.sip_hash(*key, b"") == 0x726FDB47DD0E0E31
    assert parts.sip_hash(*key, bytes(range(8))) == 0x93F5F5799A932462


@BOTH
@pytest.mark.parametrize("name", of_every_opcode())
def test_what_was_sealed_is_opened(name: str, cipher: Cipher) -> None:  # spec: sealed-packets sealed-layout
    packet = of_every_opcode()[name]
    out, into = outbound(cipher), inbound(cipher)
    sealed = out.seal(0, packet)
    is_write = name in WRITES
    assert len(sealed) == len(packet) + KEY_BYTES + TAG_BYTES + (HEADER_TAG_BYTES if is_write else 0)
    assert sealed[1] & 0x0F == 1
    clear = 36 if packet[8] & 0x10 else 32
    if is_write:
        assert sealed[2:clear] == packet[2:clear], "headers stay in the clear"
        assert packet[clear : clear + 16] not in sealed, "payloads do not"
        assert int.from_bytes(sealed[clear : clear + 3], "big") == QPN
    assert into.open(0, sealed, False) == (Opened.FRESH, packet)


@BOTH
@pytest.mark.parametrize("name", of_every_opcode())
def test_no_bit_can_be_changed(name: str, cipher: Cipher) -> None:
    """Every bit of an encrypted packet of every opcode; and then the packet itself opens: forgeries use up nothing."""
    packet = of_every_opcode()[name]
    into = inbound(cipher)
    sealed = outbound(cipher).seal(0, packet)
    for bit in range(len(sealed) * 8):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        how, opened = into.open(0, bytes(changed), False)
        assert how != Opened.FRESH and opened is None, f"bit {bit}"
    assert into.open(0, sealed, False) == (Opened.FRESH, packet)


@pytest.mark.parametrize("name", of_every_opcode())
def test_no_byte_can_be_cut_off_or_added(name: str) -> None:
    packet = of_every_opcode()[name]
    sealed = outbound().seal(0, packet)
    into = inbound()
    for size in range(len(sealed)):
        assert into.open(0, sealed[:size], False)[0] != Opened.FRESH
    for more in (b"\0", b"\0\0\0\0", sealed):
        assert into.open(0, sealed + more, False)[0] != Opened.FRESH


@pytest.mark.parametrize("name", of_every_opcode())
def test_of_a_trimmed_packet_the_headers_are_authentic(name: str) -> None:  # spec: sealed-trims
    packet = of_every_opcode()[name]
    sealed = outbound().seal(0, packet)
    clear = 36 if packet[8] & 0x10 else 32
    cut = sealed[: clear + KEY_BYTES + HEADER_TAG_BYTES]
    into = inbound()
    if name not in WRITES:
        assert into.open(0, sealed, True)[0] != Opened.FRESH, "nothing but a write is trimmed"
        return
    for bit in range(len(cut) * 8):
        changed = bytearray(cut)
        changed[bit // 8] ^= 1 << bit % 8
        assert into.open(0, bytes(changed), True)[0] != Opened.FRESH, f"bit {bit}"
    how, opened = into.open(0, cut, True)
    assert how == Opened.FRESH and opened == packet[:clear], "headers, and nothing that could be placed"
    assert into.open(0, cut, True)[0] == Opened.REPLAYED, "a number is cut once"
    assert into.open(0, sealed, False) == (Opened.FRESH, packet), "a cut copy ahead drops nothing"
    for again, is_cut in ((cut, True), (sealed, False)):
        assert into.open(0, again, is_cut)[0] == Opened.REPLAYED


def test_of_a_packet_that_was_here_no_cut_copy_is_taken() -> None:
    packet = of_every_opcode()["write_only"]
    sealed = outbound().seal(0, packet)
    cut = sealed[: (36 if packet[8] & 0x10 else 32) + KEY_BYTES + HEADER_TAG_BYTES]
    into = inbound()
    assert into.open(0, sealed, False)[0] == Opened.FRESH
    assert into.open(0, cut, True)[0] == Opened.REPLAYED


def test_no_more_is_looked_at_than_headers_can_be() -> None:
    """Of what is no write, all is in the clear: a forger must not have us hash as much as a packet holds."""
    sack = of_every_opcode()["sack"]
    assert inbound().open(0, outbound().seal(0, sack + bytes(8000)), False)[0] == Opened.UNSEALED


def test_a_number_opens_once() -> None:  # spec: replay-window
    packet = of_every_opcode()["sack"]
    out, into = outbound(), inbound()
    sealed = [out.seal(0, packet) for _ in range(3000)]
    order = sealed * 3
    random.Random(1).shuffle(order)
    found = [into.open(0, one, False)[0] for one in order]
    assert found.count(Opened.FRESH) == len(sealed)
    assert found.count(Opened.REPLAYED) == 2 * len(sealed)


class Memory:
    """What a replay window would be with memory without end."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.end = 0

    def is_fresh(self, number: int) -> bool:
        return number not in self.seen and self.end - number <= parts.ReplayWindow.size

    def add(self, number: int) -> None:
        self.seen.add(number)
        self.end = max(self.end, number + 1)


JUMPS = (
    st.integers(-80_000, 80_000) | st.integers(-70, 70) | st.sampled_from([-65537, -65536, -65535, 65535, 65536, 65537])
)


@given(st.lists(JUMPS, min_size=1, max_size=60), st.sampled_from([90_000, parts.ReplayWindow.numbers - 1]))
def test_the_window_knows_what_it_has_seen(jumps: list[int], at: int) -> None:
    """From its beginning, and up to its end."""
    window, memory = parts.ReplayWindow(), Memory()
    for jump in jumps:
        at = min(max(0, at + jump), parts.ReplayWindow.numbers - 1)
        assert window.is_fresh(at) == memory.is_fresh(at)
        if memory.is_fresh(at):
            window.add(at)
            memory.add(at)


@pytest.mark.parametrize("number", [1 << 63, (1 << 64) - 2, (1 << 64) - 1])
def test_numbers_have_an_end(number: int) -> None:
    """An end with the keys can use any. Those that would wrap are refused, and the window stays as it is."""
    into = inbound()
    assert not parts.ReplayWindow().is_fresh(number)
    assert into.open(0, numbered(number), False)[0] == Opened.FORGED
    assert into.open(0, numbered(0), False)[0] == Opened.FRESH
    for last in ((1 << 63) - 2, (1 << 63) - 1):
        assert into.open(0, numbered(last), False)[0] == Opened.FRESH
        assert into.open(0, numbered(last), False)[0] == Opened.REPLAYED
    assert into.open(0, numbered(number), False)[0] == Opened.FORGED


def test_keys_are_replaced_after_so_many_packets() -> None:  # spec: rekeying seal-keys
    packet = of_every_opcode()["write_only"]
    out, into = outbound(packets=10), inbound()
    for count in range(2700):  # more than 256 times
        assert into.open(0, heard(out).seal(0, packet), False) == (Opened.FRESH, packet)
        assert out.epoch == into.epoch == count // 10 % 256


def test_keys_are_replaced_after_so_long() -> None:
    packet = of_every_opcode()["write_only"]
    out, into = outbound(s=60), inbound()
    for second in range(0, 600, 10):
        now = 5 * SECOND_PS + second * SECOND_PS
        assert into.open(now, heard(out).seal(now, packet), False)[0] == Opened.FRESH
        assert out.epoch == into.epoch == second // 60


def test_an_outage_of_many_lifetimes_is_survived() -> None:  # spec: rekeying
    """Nothing of the peer's comes, so no more than one key is begun; and when packets get through, they open."""
    packet = of_every_opcode()["write_only"]
    for how in ({"s": 60}, {"packets": 10}):
        out, into = heard(outbound(**how)), inbound()
        for minute in range(1000):
            last = out.seal(minute * 60 * SECOND_PS, packet)
        assert (before := out.epoch) <= 1
        assert into.open(minute * 60 * SECOND_PS, last, False)[0] == Opened.FRESH
        heard(out).seal(minute * 60 * SECOND_PS, packet)
        assert out.epoch == before + 1, "who is heard again is given the next"


class End:
    """Both directions of an encrypted queue pair, at one end."""

    def __init__(self, sends: bytes, receives: bytes, **how: int) -> None:
        self.out, self.into = outbound(secret=sends, **how), inbound(secret=receives)

    def tell(self, other: End, now: int) -> bool:
        """Whether the other end could open it."""
        return other.hear(self.out.seal(now, of_every_opcode(1)["write_only"]), now)

    def hear(self, packet: bytes, now: int) -> bool:
        if self.into.open(now, packet, False)[0] != Opened.FRESH:
            return False
        self.out.on_heard(self.into.epoch)
        return True


@pytest.mark.parametrize("how", [{"s": 60}, {"packets": 10}], ids=str)
@pytest.mark.parametrize("deaf", [0, 1])
def test_keys_do_not_run_away_in_an_outage_of_one_way(how: dict[str, int], deaf: int) -> None:  # spec: rekeying
    """One end hears the other, and is not heard. When it is, what it says can still be opened, and keys are replaced
    again."""
    first, second = bytes(range(32)), bytes(range(1, 33))
    ends = End(first, second, **how), End(second, first, **how)
    heard_end, deaf_end = ends[1 - deaf], ends[deaf]
    minute = 60 * SECOND_PS
    for now in range(0, 1000 * minute, minute):
        assert deaf_end.tell(heard_end, now)
        heard_end.out.seal(now, of_every_opcode(1)["write_only"])  # and this is lost
    assert max(end.out.epoch for end in ends) <= 2
    for now in range(1000 * minute, 1100 * minute, minute):
        assert heard_end.tell(deaf_end, now) and deaf_end.tell(heard_end, now)
    assert min(end.out.epoch for end in ends) > 5


def test_the_peer_replaces_its_key_when_it_has_seen_a_new_one() -> None:  # spec: rekeying
    first, second = bytes(range(32)), bytes(range(1, 33))
    ends = End(first, second, packets=10), End(second, first)
    for count in range(600):
        assert ends[0].tell(ends[1], 0) and ends[1].tell(ends[0], 0)
        assert abs(ends[0].out.epoch - ends[1].out.epoch) <= 1, count
    assert ends[0].out.epoch >= 40, "the one whose keys do not last has them replaced"


def test_no_key_serves_for_more_than_its_most() -> None:
    packet = of_every_opcode()["write_only"]
    out = outbound(packets=10, most=50)
    epochs = [(out.seal(0, packet), out.epoch)[1] for _ in range(200)]
    assert epochs == [count // 50 for count in range(200)]


def test_the_old_key_is_taken_for_a_while() -> None:
    packet = of_every_opcode()["write_only"]
    out, into = outbound(packets=10), inbound()
    first = [out.seal(0, packet) for _ in range(10)]
    second = [heard(out).seal(0, packet) for _ in range(10)]
    assert into.open(0, second[0], False)[0] == Opened.FRESH
    assert into.open(SECOND_PS, first[0], False)[0] == Opened.FRESH
    assert into.open(3 * SECOND_PS, first[1], False)[0] == Opened.FORGED, "its time is over"
    assert into.open(3 * SECOND_PS, second[1], False)[0] == Opened.FRESH


def test_whole_keys_may_be_lost() -> None:
    packet = of_every_opcode()["write_only"]
    out, into = outbound(packets=10), inbound()
    sealed = [heard(out).seal(0, packet) for _ in range(200)]
    assert into.open(0, sealed[170], False)[0] == Opened.FORGED, "too far ahead"
    for late in (155, 165, 199):
        assert into.open(0, sealed[late], False)[0] == Opened.FRESH


def test_forgers_cannot_have_keys_replaced() -> None:
    packet = of_every_opcode()["write_only"]
    out, into = outbound(), inbound()
    sealed = bytearray(out.seal(0, packet))
    clear = 36 if packet[8] & 0x10 else 32
    for epoch in range(1, 256):
        sealed[clear + 3] = epoch
        assert into.open(0, bytes(sealed), False)[0] == Opened.FORGED
    assert into.epoch == 0
    assert into.open(0, out.seal(0, packet), False)[0] == Opened.FRESH


def test_numbers_are_never_used_twice() -> None:
    """Under many keys too, since they go on when keys are replaced: each is one more than the last. As many as
    SOFTMRC_NUMBERS says."""
    packet = of_every_opcode(1)["write_only"]
    clear = 36 if packet[8] & 0x10 else 32
    out = outbound(packets=1000)
    for number in range(int(os.environ.get("SOFTMRC_NUMBERS", "50000"))):
        assert heard(out).seal(0, packet)[clear + 4 : clear + 12] == number.to_bytes(8, "big")


def test_a_forked_child_seals_nothing() -> None:
    """It has its parent's keys and numbers, and would use them a second time."""
    packet = of_every_opcode()["write_only"]
    out = outbound()
    out.seal(0, packet)
    child = os.fork()
    if child == 0:
        try:
            out.seal(0, packet)
        except InternalError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    out.seal(0, packet)


def test_other_keys_open_nothing() -> None:
    packet = of_every_opcode()["write_only"]
    sealed = outbound().seal(0, packet)
    for cipher in Cipher:
        for secret in (SECRET, bytes(32)):
            is_same = cipher == Cipher.AES_256_GCM and secret == SECRET
            assert (inbound(cipher, secret).open(0, sealed, False)[0] == Opened.FRESH) is is_same


def test_a_cipher_is_chosen() -> None:
    assert _core.faster_cipher() in Cipher and _core.faster_cipher() == _core.faster_cipher()


def test_no_key_meets_a_number_twice_over_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handshakes under one secret, between the same ends, never make the same key; under each, keys are replaced."""
    log = tmp_path / "keys.log"
    monkeypatch.setenv("SOFTMRC_KEYLOG", str(log))
    for _ in range(20):
        mine, theirs = KeyShare(), KeyShare()
        told = PeerEncryption.parse("seal", theirs.to_wire())
        assert told is not None
        mine.keys(told, b"secret", b"salt", True, 5, 6)
    secrets = [bytes.fromhex(line.split()[2]) for line in log.read_text().splitlines()]
    packet, used = of_every_opcode(1)["write_only"], set()
    clear = 36 if packet[8] & 0x10 else 32
    for secret in secrets:
        out, keys = outbound(secret=secret, packets=300), [secret]
        for _ in range(1000):
            sealed = heard(out).seal(0, packet)
            while len(keys) <= sealed[clear + 3]:
                keys.append(parts.seal_next_secret(keys[-1]))
            used.add((keys[sealed[clear + 3]], sealed[clear + 4 : clear + 12]))
    assert len(secrets) == 40 and len(used) == len(secrets) * 1000


def test_both_ends_make_the_same_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And another secret, salt, role or queue pair makes others."""
    mine, theirs = KeyShare(), KeyShare()

    def made(own: KeyShare, other: KeyShare, *about: Any) -> list[str]:
        log = tmp_path / "keys.log"
        log.unlink(missing_ok=True)
        monkeypatch.setenv("SOFTMRC_KEYLOG", str(log))
        told = PeerEncryption.parse("seal", other.to_wire())
        assert told is not None
        own.keys(told, *about)
        return sorted(log.read_text().splitlines())

    same = made(mine, theirs, b"secret", b"salt", True, 5, 6)
    assert made(theirs, mine, b"secret", b"salt", False, 6, 5) == same
    others = [
        made(mine, theirs, b"another", b"salt", True, 5, 6),
        made(mine, theirs, b"secret", b"pepper", True, 5, 6),
        made(mine, theirs, b"secret", b"salt", False, 5, 6),
        made(mine, theirs, b"secret", b"salt", True, 5, 7),
    ]
    keys = [line.split()[2] for one in (same, *others) for line in one]
    assert len(set(keys)) == len(keys) == 10


def test_a_share_is_forgotten_when_its_keys_are_made() -> None:
    mine, theirs = KeyShare(), KeyShare()
    told = PeerEncryption.parse("seal", theirs.to_wire())
    assert told is not None
    mine.keys(told, b"secret", b"salt", True, 5, 6)
    mine.forget()
    with pytest.raises(InternalError, match="forgotten"):
        mine.keys(told, b"secret", b"salt", True, 5, 6)
