"""An attacker who sees every packet and may inject, change, cut, replay, reflect, reorder and delay: against encrypted
packets it can do no more than a bad network. A million of its packets: `python -m softmrc_bench.attacker 1000000`."""

from __future__ import annotations

import pytest

from softmrc import _core
from softmrc._core import Cipher
from softmrc_bench.attacker import KINDS, AttackResult, attack

pytestmark = pytest.mark.skipif(not _core.can_seal(), reason="built without libcrypto")

PACKETS = 4000


def check(found: AttackResult) -> None:
    assert found.mutated >= PACKETS and set(found.kinds) == set(KINDS)
    assert found.placed_bytes == 0
    assert found.wrong_completions == 0
    assert found.is_alive
    assert all(found.refused[f"refused_{why}"] > 0 for why in ("forged", "replayed", "unsealed"))
    assert found.refused["refused_malformed"] == 0, "whatever is opened is what a device has sent"


@pytest.mark.parametrize("cipher", list(Cipher), ids=lambda cipher: cipher.name)
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_placed_and_nothing_ends(cipher: Cipher, seed: int) -> None:  # spec: sealed-packets sealed-trims
    check(attack(PACKETS, seed, cipher))


def test_nor_while_keys_are_replaced() -> None:  # spec: rekeying
    check(attack(PACKETS, 3, rekey_packets=20))


def test_the_attack_can_succeed() -> None:
    """Without encryption it does, so the tests above would notice; which packets it meets is chance."""

    def succeeds(seed: int) -> bool:
        found = attack(PACKETS, seed, is_sealed=False, icrc=False)
        return found.placed_bytes > 0 or found.wrong_completions > 0 or not found.is_alive

    assert any(succeeds(seed) for seed in range(1, 9))
