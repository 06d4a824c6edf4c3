"""A device that is closed under its groups: nothing looks done that is not, and what was said before still arrives."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from collectives.ranks import Ranks, ranks
from softmrc.collectives import CollectiveError, Group, Work
from softmrc.device import Device
from udp.loopback import eventually

ONE = ["127.0.0.1"]
SMALL, LARGE = 10, 1_000_000
OPERATIONS: dict[str, Callable[[Group], Work]] = {
    "small all_reduce": lambda g: g.all_reduce(np.ones(SMALL)),
    "large all_reduce": lambda g: g.all_reduce(np.ones(LARGE)),
    "barrier": lambda g: g.barrier(),
    "broadcast": lambda g: g.broadcast(np.ones(SMALL), 0),
    "send": lambda g: g.send(np.ones(SMALL), 1 - g.rank) if g.rank == 0 else g.recv(np.ones(SMALL), 0),
    "large send": lambda g: g.send(np.ones(LARGE), 1 - g.rank) if g.rank == 0 else g.recv(np.ones(LARGE), 0),
    "recv": lambda g: g.recv(np.ones(SMALL), 1) if g.rank == 0 else g.send(np.ones(LARGE), 0),
}
DONE_AT_ONCE = ("send", "broadcast")  # on rank 0, which copies what is small


@pytest.mark.parametrize("what", OPERATIONS)
def test_nothing_is_done_on_a_closed_device(what: str) -> None:
    with ranks(2, planes=ONE) as two:
        two(lambda group: group.barrier().wait())
        two.groups[0].device.close()
        for group in two.groups:
            work = OPERATIONS[what](group)
            with pytest.raises(CollectiveError, match="closed" if group.rank == 0 else "rank 0 has left"):
                work.wait()
            assert work.done and work.error is not None


@pytest.mark.parametrize("what", OPERATIONS)
def test_nothing_is_begun_on_a_device_that_stopped_by_itself(what: str) -> None:
    with ranks(2, planes=ONE) as two:
        group = two.groups[0]
        group.device._native.close()  # as when one of its checks fails: no group is notified
        work = OPERATIONS[what](group)
        assert work.done and "the device is closed" in str(work.error)


@pytest.mark.parametrize("what", [what for what in OPERATIONS if what not in DONE_AT_ONCE])
def test_what_is_under_way_when_the_device_closes_fails_everywhere(what: str) -> None:
    with ranks(2, planes=ONE) as two:
        closing, other = two.groups
        work = OPERATIONS[what](closing)
        closing.device.close()
        assert work.done and "left the group in the middle" in str(work.error)
        with pytest.raises(CollectiveError, match="rank 0 left the group in the middle"):
            other.barrier().wait()


def test_groups_of_one_device_all_leave() -> None:
    with Device(ONE) as device, ranks(2, planes=ONE) as two:
        alone = Group.join(two.store, 0, 1, device=device, name="alone")
        device.close()
        assert alone.barrier().error is not None
        two(lambda group: group.barrier().wait())


def in_the_dark(two: Ranks, what: str) -> tuple[Work, Work]:
    """Rank 0 has what rank 1 said; what rank 0 says does not reach it."""
    near, far = two.groups
    waits = OPERATIONS[what](far)
    words = far.pairs[0][0].messages
    assert eventually(lambda: words.query()["messages"] == 0)  # all acknowledged
    far.device.set_faults(black_hole=True)
    return OPERATIONS[what](near), waits


def test_what_was_said_before_the_device_closed_arrives() -> None:
    with ranks(2, planes=ONE) as two, ThreadPoolExecutor(1) as pool:
        near, far = two.groups
        done, waits = in_the_dark(two, "small all_reduce")
        done.wait()  # it has all it needs
        closing = pool.submit(near.device.close)
        with pytest.raises(TimeoutError):
            waits.wait(0.2)
        far.device.set_faults()
        waits.wait()
        closing.result()


def test_a_barrier_ends_when_the_others_know() -> None:
    with ranks(2, planes=ONE) as two:
        done, waits = in_the_dark(two, "barrier")
        with pytest.raises(TimeoutError):
            done.wait(0.2)
        two.groups[1].device.set_faults()
        done.wait()
        waits.wait()


def test_a_first_barrier_survives_a_device_that_closes_after_it() -> None:
    def first(group: Group) -> None:
        group.barrier().wait()
        if group.rank == 0:
            group.device.close()

    for _ in range(8):
        with ranks(2, planes=ONE) as two:
            assert two(first) == [None, None]
