"""A pipe through shared memory compared with a plain queue, and what it is not."""

from __future__ import annotations

import fcntl
import mmap
import os
import random
import select
import struct
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import parts

CAPACITY = parts.Pipe.CAPACITY
NUMBER = struct.Struct("=Q")
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
    for other in (read, write, memory):  # a process that can shorten a file could crash one that has it mapped
        assert parts.Pipe.open(0, os.getpid(), other) is None
        os.close(other)


def test_an_end_that_is_gone_leaves_the_other_its_memory() -> None:
    taker = parts.Pipe.make(3)
    key = taker.key
    putter = parts.Pipe.open(*key)
    del taker
    assert putter.put(b"nobody")
    assert parts.Pipe.open(*key) is None


def head_of(pipe: parts.Pipe) -> mmap.mmap:
    """What both processes see of it, as a malicious one does."""
    _, process, descriptor = pipe.key
    with open(f"/proc/{process}/fd/{descriptor}", "r+b") as file:
        return mmap.mmap(file.fileno(), 4096 + CAPACITY)


@pytest.mark.parametrize("seed", range(20))
def test_a_liar_writes_into_what_is_shared(seed: int) -> None:
    """Whatever it claims to have put or taken: nothing is taken that cannot be there, and nothing is read or written
    outside."""
    rng = random.Random(seed)
    taker = parts.Pipe.make(1)
    putter = parts.Pipe.open(*taker.key)
    head = head_of(taker)
    taken = 0
    for _ in range(200):
        claim = (taken + rng.choice([-1, 1]) * rng.choice([0, 63, 64, CAPACITY, CAPACITY + 64, 1 << 62])) % (1 << 64)
        size = rng.choice([0, 1, 64, 65, rng.randrange(CAPACITY), CAPACITY, CAPACITY + 1, 1 << 40])
        act = rng.randrange(3)
        if act == 0:
            NUMBER.pack_into(head, 64, claim)
            held = (claim - taken) % (1 << 64)
            found = taker.take(size)
            assert (found is not None) == (held <= CAPACITY and -(-size // 64) * 64 <= held)
            if found is not None:
                assert len(found) == size
                taken += -(-size // 64) * 64
        elif act == 1:
            NUMBER.pack_into(head, 128, claim)
            putter.put(bytes(min(size, CAPACITY + 1)))
        else:
            head[136:140] = rng.randbytes(4)
            taker.is_awaited()
    assert head[0:8] == NUMBER.pack(1)


def test_what_is_no_memory_is_not_even_opened(tmp_path: Path) -> None:
    """To open a device may do something; a FIFO shows its reader that it was opened."""
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    watch = select.poll()
    watch.register(reader)
    try:
        assert parts.Pipe.open(1, os.getpid(), reader) is None
        assert watch.poll(0) == []
        os.close(os.open(tmp_path / "fifo", os.O_RDWR))
        assert watch.poll(0) != []  # which is what would have been seen
    finally:
        os.close(reader)


@pytest.mark.parametrize("size", [0, 4096, 4096 + CAPACITY - 1, 4096 + CAPACITY + 1])
def test_memory_of_another_size(size: int) -> None:
    """Reading beyond its end would crash the reader, though it cannot shrink."""
    descriptor = os.memfd_create("a liar's", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.truncate(descriptor, size)
        os.pwrite(descriptor, NUMBER.pack(1)[:size], 0)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        assert parts.Pipe.open(1, os.getpid(), descriptor) is None
    finally:
        os.close(descriptor)
