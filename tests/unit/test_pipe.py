"""A pipe through shared memory beside a plain queue, and what it is not."""

from __future__ import annotations

import os
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from softmrc._core import parts

CAPACITY = parts.Pipe.CAPACITY
SIZES = st.one_of(st.integers(1, 200), st.integers(1, CAPACITY // 3), st.just(CAPACITY))
STEPS = st.lists(st.one_of(SIZES, st.just("take"), st.just("take back")), min_size=1, max_size=40)


def room(sizes: deque[bytes]) -> int:
    return CAPACITY - sum((len(one) + 63) // 64 * 64 for one in sizes)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 255))
def test_it_is_a_queue(steps: list[int | str], seed: int) -> None:
    taker = parts.Pipe.make(7)
    putter = parts.Pipe.open(*taker.key)
    held: deque[bytes] = deque()
    waits = False
    for number, step in enumerate(steps):
        if step == "take":
            if held:
                assert taker.take(len(held[0])) == held.popleft()
                assert taker.is_awaited() == waits and not taker.is_awaited()
                waits = False
            else:
                assert taker.take(1) is None
        elif step == "take back":
            if held:
                putter.take_back(len(held.pop()))
        else:
            one = (bytes(range(256)) * (int(step) // 256 + 2))[seed + number % 7 :][: int(step)]
            fits = (len(one) + 63) // 64 * 64 <= room(held)
            waits = waits or not fits
            assert putter.put(one) == fits
            if fits:
                held.append(one)
    for one in held:
        assert taker.take(len(one)) == one
    assert taker.take(1) is None


def test_more_than_was_put_is_not_there() -> None:
    taker = parts.Pipe.make(1)
    putter = parts.Pipe.open(*taker.key)
    assert putter.put(b"x" * 64)
    assert taker.take(65) is None and taker.take(CAPACITY + 64) is None and taker.take(1 << 63) is None
    assert taker.take(64) == b"x" * 64


def test_what_is_no_pipe_is_not_opened() -> None:
    taker = parts.Pipe.make(1)
    _, process, descriptor = taker.key
    assert parts.Pipe.open(2, process, descriptor) is None  # another one's
    assert parts.Pipe.open(1, process, -1) is None
    assert parts.Pipe.open(1, 0, descriptor) is None
    read, write = os.pipe()
    memory = os.memfd_create("not sealed")
    os.ftruncate(memory, CAPACITY + 4096)
    for other in (read, write, memory):  # whoever can shorten a file could end whoever has it in memory
        assert parts.Pipe.open(0, os.getpid(), other) is None
        os.close(other)


def test_an_end_that_is_gone_leaves_the_other_its_memory() -> None:
    taker = parts.Pipe.make(3)
    key = taker.key
    putter = parts.Pipe.open(*key)
    del taker
    assert putter.put(b"nobody")
    assert parts.Pipe.open(*key) is None
