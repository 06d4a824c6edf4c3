"""Peers that say what no honest rank says: the group fails in words, and no memory is touched that is not theirs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

from collectives.impostor import ACCEPT, BYE, CREDIT, EAGER, ERROR, OFFER, Impostor, group_with_impostor
from collectives.ranks import TIMEOUT_S, ranks
from softmrc import _core
from softmrc.collectives import CollectiveError, Group, Work

Both = tuple[Group, Impostor]
LARGE = 1 << 16


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    with group_with_impostor(monkeypatch) as made:
        yield made


def test_an_honest_word_is_understood(both: Both) -> None:
    """Else the others would fail for the wrong reason."""
    group, impostor = both
    memory = np.zeros(8, np.uint8)
    impostor.say(OFFER, b"honestly", has_payload=1, bytes=8)
    group.recv(memory, 1).wait()
    assert memory.tobytes() == b"honestly" and group.error is None


@pytest.mark.parametrize("is_awaited", [True, False])
@pytest.mark.parametrize("size", [0, 7, 9, 4000])
def test_an_offer_whose_payload_is_of_another_size(both: Both, size: int, is_awaited: bool) -> None:
    group, impostor = both
    memory = np.zeros(16, np.uint8)
    work = group.recv(memory[:8], 1) if is_awaited else None
    impostor.say(OFFER, b"x" * size, has_payload=1, bytes=8)
    with pytest.raises(CollectiveError, match="rank 1 sent a message that makes no sense"):
        (work or group.recv(memory[:8], 1)).wait()
    assert not memory.any()


@pytest.mark.parametrize("field", ["dtype", "kind", "op"])
def test_a_word_of_no_known_meaning(both: Both, field: str) -> None:
    group, impostor = both
    work = group.recv(np.zeros(8, np.uint8), 1)
    impostor.say(OFFER, **{field: 200}, bytes=16)
    with pytest.raises(CollectiveError, match="rank 1 sent a message that makes no sense"):
        work.wait()


def test_a_message_of_no_known_type(both: Both) -> None:
    group, impostor = both
    impostor.say(77)
    with pytest.raises(CollectiveError, match="rank 1 sent a message that makes no sense"):
        group.recv(np.zeros(8, np.uint8), 1).wait()


def test_a_send_that_is_accepted_twice(both: Both) -> None:
    """The second write would read memory that its owner has back when the first one has ended."""
    group, impostor = both
    work = group.send(np.zeros(LARGE, np.uint8), 1)
    for _ in range(2):
        impostor.say(ACCEPT, number=1, bytes=LARGE, rkey=1)  # a key that opens nothing: neither write can end well
    with pytest.raises(CollectiveError, match="rank 1 accepted a send twice"):
        work.wait()


def test_nothing_is_read_after_a_goodbye_that_comes_too_early(both: Both) -> None:
    group, impostor = both
    memory = np.zeros(1 << 26, np.uint8)
    key = impostor.let_write(memory.size)
    work = group.send(memory, 1)
    impostor.say(ACCEPT, number=1, bytes=memory.size, rkey=key)
    impostor.say(BYE, number=0)
    work.wait()
    assert not group.device._native.reads_from(_core.Buffer(memory, False))


def test_a_sender_whose_offer_was_taken_is_asked_after(both: Both) -> None:
    """It may be dead by then, and only a question shows it."""
    group, impostor = both
    impostor.say(OFFER, bytes=LARGE)
    impostor.say(OFFER, b"x", has_payload=1, bytes=1, tag=1)
    group.recv(np.zeros(1, np.uint8), 1, 1).wait()
    time.sleep(1.2)  # what that one asked for is over
    assert ACCEPT not in impostor.heard()
    before = impostor.heard().count(CREDIT)
    work = group.recv(np.zeros(LARGE, np.uint8), 1)
    until = time.monotonic() + TIMEOUT_S
    while impostor.heard().count(CREDIT) < before + 2 and time.monotonic() < until:
        with suppress(TimeoutError):
            work.wait(0.05)
    assert ACCEPT in impostor.heard() and impostor.heard().count(CREDIT) >= before + 2


def test_the_goodbye_of_a_rank_that_failed_acknowledges_nothing(both: Both) -> None:
    """It may have failed before it had read what was written to it."""
    group, impostor = both
    memory = np.zeros(1 << 28, np.uint8)  # which is under way for long enough
    key = impostor.let_write(memory.size)
    work = group.send(memory, 1)
    impostor.say(ACCEPT, number=1, bytes=memory.size, rkey=key)
    impostor.say(BYE, number=1)
    with pytest.raises(CollectiveError, match="rank 1 has left the group, which had failed there"):
        work.wait()
    assert not group.device._native.reads_from(_core.Buffer(memory, False))


ROUNDS = 3
STEPS = [b"\1" * 128, b"\2" * 72]  # what rank 1 says in an all-reduce of 200 bytes in rounds: its sum, then the result


def begin_in_rounds(group: Group) -> tuple[np.ndarray, Work]:
    memory = np.full(200, 7, np.uint8)
    group._native.force("rounds")
    return memory, group.all_reduce(memory)


def say_step(impostor: Impostor, step: int, payload: bytes, **fields: int) -> None:
    said = {"algorithm": ROUNDS, "count": 200, "bytes": len(payload), "step": step} | fields
    impostor.say(EAGER, payload, **said)


def test_steps_that_come_in_the_wrong_order_wait_for_their_turn(both: Both) -> None:
    group, impostor = both
    memory, work = begin_in_rounds(group)
    for step in (1, 0):
        say_step(impostor, step, STEPS[step])
    work.wait()
    assert (memory[:128] == 8).all() and (memory[128:] == 2).all()


LIES: dict[str, tuple[int, bytes, dict[str, int], str]] = {
    "no such step": (5, STEPS[0], {}, "rank 1 sends 128 bytes to rank 0 in step 5 of all_reduce.*, which expects 200"),
    "no such step by far": (2**32 - 1, STEPS[0], {}, "rank 1 sends 128 bytes to rank 0 in step 4294967295"),
    "twice": (1, STEPS[1], {}, "rank 1 sent step 1 of all_reduce.* twice"),
    "too long": (
        0,
        STEPS[0] + b"x",
        {},
        "rank 1 sends 129 bytes to rank 0 in step 0 of all_reduce.*, which expects 128",
    ),
    "too short": (0, b"", {}, "rank 1 sends 0 bytes to rank 0 in step 0"),
    "shorter than it says": (0, b"x" * 8, {"bytes": 128}, "rank 1 sends 128 bytes to rank 0 in step 0"),
    "another algorithm": (0, STEPS[0], {"algorithm": 2}, "rank 1 called all_reduce.* by doubling where .* by rounds"),
    "no algorithm": (0, STEPS[0], {"algorithm": 200}, "rank 1 sent a message that makes no sense"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_step_that_cannot_be(both: Both, lie: str) -> None:
    group, impostor = both
    step, payload, fields, words = LIES[lie]
    _, work = begin_in_rounds(group)
    say_step(impostor, 1, STEPS[1])
    say_step(impostor, step, payload, **fields)
    with pytest.raises(CollectiveError, match=words):
        work.wait()


def test_a_goodbye_in_the_middle_of_steps(both: Both) -> None:
    """What was not said yet will never be."""
    group, impostor = both
    _, work = begin_in_rounds(group)
    impostor.say(BYE, number=0)
    with pytest.raises(CollectiveError, match="rank 1 has left the group; all_reduce"):
        work.wait()


def test_a_rank_that_runs_ahead_without_end(both: Both) -> None:
    group, impostor = both
    for number in range(2, 60):
        impostor.say(EAGER, number=number)
    with pytest.raises(CollectiveError, match="rank 1 is further ahead than any rank may be"):
        group.barrier().wait()


def test_last_words_that_are_no_text(both: Both) -> None:
    group, impostor = both
    impostor.say(ERROR, b"\xff\xfe bad \xc3")
    with pytest.raises(CollectiveError, match="� bad �"):
        group.barrier().wait()
    assert "bad" in str(group.error)


def test_last_words_that_are_cut_in_the_middle_of_a_character() -> None:
    with ranks(2) as two:
        two.groups[0].abort("x" + "ä" * 2000)
        with pytest.raises(CollectiveError, match=r"rank 0 aborted: xä{400}"):
            two.groups[1].barrier().wait()
