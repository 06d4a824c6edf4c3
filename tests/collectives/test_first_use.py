"""Ranks connect when they first speak to each other: what that costs, who may begin, and what of those who never do."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from collectives.ranks import PLANES, TIMEOUT_S, listed, ranks, values_of
from softmrc import _core
from softmrc.collectives import CollectiveError, DirectoryStore, Group
from softmrc.config import DeviceConfig
from softmrc.device import Device
from softmrc.errors import UsageError
from udp.loopback import eventually

IMPATIENT = DeviceConfig(timeout=13, retry_linear=3, retry_exponential=2)  # a silent peer is given up in 0.2 s


@pytest.fixture(params=["off", "on"], ids=["plain", "encrypted"])
def config(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DeviceConfig:
    if request.param == "on" and not _core.can_seal():
        pytest.skip("built without libcrypto")
    if request.param == "on":
        monkeypatch.setenv("SOFTMRC_SECRET", "what all ranks know")
    return DeviceConfig(seal=request.param)


def holdings(group: Group) -> tuple[int, int, int]:
    """Queue pairs, regions and peers that a rank's device has."""
    native = group.device._native
    return native.qp_count, native.region_count, native.peer_count


def test_who_has_not_spoken_knows_nobody() -> None:
    """On loopback, where no plane can be in the wrong switch."""
    with ranks(6, lanes=1) as six:
        assert [holdings(group) for group in six.groups] == [(0, 0, 0)] * 6
        six.groups[0].send(np.ones(3), 3).wait()
        six.groups[3].recv(np.zeros(3), 0).wait()
        assert [holdings(group) for group in six.groups] == [
            (2, 1, 1) if rank % 3 == 0 else (0, 0, 0) for rank in range(6)
        ]


def test_planes_are_looked_at_where_the_environment_breaks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank asks the next one; so does it where planes leave the machine."""
    monkeypatch.setenv("SOFTMRC_FAULTS", "drop=0.001")
    with ranks(6, lanes=1) as six:
        around = [sorted([(rank + 1) % 6, (rank - 1) % 6]) for rank in range(6)]
        assert eventually(lambda: [sorted(group.pairs) for group in six.groups] == around)
        assert [holdings(group) for group in six.groups] == [(4, 2, 2)] * 6


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_rank_has_as_much_as_it_speaks_with_others(lanes: int) -> None:
    """In a barrier with at most two in each of four rounds; of the other lanes there is nothing until one is used."""
    with ranks(12, lanes=lanes) as twelve:
        values_of(twelve(lambda group: group.barrier().wait()))
        for group in twelve.groups:
            met = group.stats()["peers_met"]
            assert met == len(group.pairs) <= 8 < 11
            assert holdings(group) == (2 * met, met, met)


def test_ranks_far_apart_know_as_little_of_each_other_in_a_large_group() -> None:
    """Four times the ranks, two partners more: nothing grows with those that are never spoken to."""
    found = []
    for size in (8, 32):
        with ranks(size, planes=["127.0.0.1"], lanes=1) as many:
            values_of(many(lambda group: group.barrier().wait()))
            found.append(max(holdings(group)[0] for group in many.groups))
    assert found[1] - found[0] <= 2 * 2 * 2, found


@pytest.mark.parametrize("seed", range(4))
def test_first_words_from_both_sides_at_once(config: DeviceConfig, seed: int) -> None:
    """Everybody speaks to everybody first, at random moments, through loss, copies and another order: whichever packet
    comes first, its keys are there."""
    draw = random.Random(seed)
    naps = [[draw.random() * 0.003 for _ in range(4)] for _ in range(4)]
    with ranks(4, device_config=config) as four:
        for group in four.groups:
            group.device.set_faults(drop=0.1, duplicate=0.1, reorder=0.1, reorder_delay_us=500)

        def run(group: Group) -> list[list[float]]:
            others = [peer for peer in range(4) if peer != group.rank]
            random.Random(seed * 4 + group.rank).shuffle(others)
            works = []
            for peer in others:
                time.sleep(naps[group.rank][peer])
                works.append(group.send(np.full(20_000, 10.0 * group.rank + peer), peer))
            found = []
            for peer in sorted(others):
                array = np.zeros(20_000)
                group.recv(array, peer).wait()
                found.append(sorted(set(array.tolist())))
            for work in works:
                work.wait()
            return found

        expected = [[[10.0 * peer + rank] for peer in range(4) if peer != rank] for rank in range(4)]
        assert values_of(four(run)) == expected
        assert [holdings(group) for group in four.groups] == [(6, 3, 3)] * 4


@contextmanager
def on_shared_devices(size: int, count: int) -> Iterator[list[list[Group]]]:
    """So many groups of the same ranks, by rank; each rank has one device for all."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(size) as pool:
        devices = [Device(PLANES, lanes=1) for _ in range(size)]  # what they hold is counted by lane

        def join(rank: int) -> list[Group]:
            store, about = DirectoryStore(folder), {"device": devices[rank], "timeout_s": TIMEOUT_S}
            return [Group.join(store, rank, size, name=str(number), **about) for number in range(count)]

        groups = list(pool.map(join, range(size)))
        try:
            yield groups
        finally:
            list(pool.map(lambda rank: [group.close() for group in groups[rank]], range(size)))
            for device in devices:
                device.close()


def test_groups_of_one_device_share_what_they_know() -> None:
    """The first uses of all of them at once; then one after the other leaves, and the rest go on."""
    with on_shared_devices(3, 3) as groups, ThreadPoolExecutor(3) as pool:

        def add(rank: int) -> list[float]:
            arrays = [np.full(4, 1.0 + number) for number in range(3)]
            works = [group.all_reduce(array) for group, array in zip(groups[rank], arrays, strict=True)]
            for work in works:
                work.wait()
            return [float(array[0]) for array in arrays]

        assert list(pool.map(add, range(3))) == [[3.0, 6.0, 9.0]] * 3
        native = groups[0][0].device._native
        assert native.peer_count == 2, "the same ranks are the same peers"
        assert native.qp_count == 3 * 2 * 2
        for number in range(2):
            list(pool.map(lambda rank, number=number: groups[rank][number].close(), range(3)))
            list(pool.map(lambda rank: groups[rank][2].barrier().wait(), range(3)))
        assert native.qp_count == 2 * 2 and native.peer_count == 2 and native.cq_count == 1


def test_a_group_that_was_dropped_leaves_nothing_behind() -> None:
    with on_shared_devices(2, 1) as groups, ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: groups[rank][0].barrier().wait(), range(2)))
        native = groups[0][0].device._native
        assert (native.qp_count, native.cq_count, native.peer_count) == (2, 1, 1)
        groups[0].clear()
        gc.collect()
        assert (native.qp_count, native.cq_count) == (0, 0)
        assert eventually(lambda: native.peer_count == 0)  # after its queue pairs' last words


def test_only_lanes_that_all_have_are_used() -> None:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:

        def join(rank: int) -> int:
            store, lanes = DirectoryStore(folder), (6, 2)[rank]
            with Device(PLANES, lanes=lanes) as device, Group.join(store, rank, 2, device=device) as group:
                group.all_reduce(np.ones(1 << 18)).wait()
                return group.lanes

        assert list(pool.map(join, range(2))) == [2, 2]


@pytest.mark.parametrize("size", [2, 5, 12])
def test_bad_news_reaches_those_with_whom_nobody_has_spoken(config: DeviceConfig, size: int) -> None:
    with ranks(size, planes=["127.0.0.1"], device_config=config) as many:
        many.groups[size // 2].abort("on request")
        for group in many.groups:
            assert eventually(lambda group=group: group.error is not None)
            assert f"rank {size // 2} aborted: on request" in str(group.error)


def test_who_speaks_to_a_group_that_has_failed_hears_why() -> None:
    """A rank that was not notified, since all that know of it are gone or cut off, learns it when it asks."""
    with ranks(3) as three:
        zero, one, two = three.groups
        two.device.set_faults(black_hole=True)
        zero.abort("early")
        assert eventually(lambda: one.error is not None)
        two.device.set_faults()
        with pytest.raises(CollectiveError, match="rank 0 aborted: early"):
            two.recv(np.zeros(1), 0).wait()


def test_a_rank_that_left_before_anybody_spoke_to_it() -> None:
    with ranks(6, device_config=IMPATIENT) as six:
        six.groups[3].close()
        errors = six(lambda group: group.barrier().wait() if group.rank != 3 else None)
        for error in errors[:3] + errors[4:]:
            assert isinstance(error, CollectiveError) and "rank 3 has left the group" in str(error)


def test_numbers_that_are_kept_are_nobody_elses() -> None:
    """Of a rank that keeps so many that others would draw some of them."""
    size, port = 500_000, _core.CompletionPort()
    with Device(PLANES, lanes=1) as device:
        cq = device.create_cq()
        group = _core.CollectiveGroup(device._native, [(0, *device.profiles_of(0))], 0, size, cq.number, 1, port)
        ((first, stride, _),) = group.reserve()
        kept = range(first, first + 2 * size * stride, stride)
        assert not [pair for pair in (device.create_qp(cq) for _ in range(300)) if pair.qpn in kept]
        with pytest.raises(UsageError):
            device._native.create_qp(kept[7])
        group.close(0.0)
        device._native.create_qp(kept[7])


def test_a_rank_cannot_make_another_meet_a_third() -> None:
    """It knows the number that is kept for the third, and where; its own address is what counts."""
    with ranks(6, lanes=1) as three:
        victim, liar = three.groups[:2]
        first, stride = listed(three.store)[0]["offer"]["channels"][0]["pairs"]
        device = liar.device
        memory = device.register(bytearray(64))
        pair = device.create_qp(device.create_cq())
        pair.init()
        node = device.add_peer(victim.device.reached_at(0))
        pair.rtr(node, dest_qpn=first + stride * 2 * 3, first_psn=0)
        pair.rts()
        pair.post_write(memory, 0, 64, remote_va=0, rkey=0)
        assert eventually(lambda: victim.device.stats()["refused_unknown_qp"] > 0)
        assert not victim.pairs
        pair.destroy()


VICTIM = """
import sys
from softmrc.collectives import *
with Group.join(DirectoryStore(sys.argv[1]), 3, 6, planes=["127.0.0.1", "127.0.0.2"]) as group:
    print("here", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("waits", [True, False])
def test_a_rank_that_dies_before_anybody_spoke_to_it(how: signal.Signals, waits: bool) -> None:
    """A rank that needs it notices, whether it sends to it or only waits for it; and so do the others."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(5) as pool:
        process = subprocess.Popen([sys.executable, "-c", VICTIM, folder], text=True, **pipes)
        try:
            store, about = DirectoryStore(folder), {"planes": PLANES, "device_config": IMPATIENT, "timeout_s": 60.0}
            groups = list(pool.map(lambda rank: Group.join(store, rank, 6, **about), (0, 1, 2, 4, 5)))
            assert process.stdout and process.stdout.readline() == "here\n"
            os.kill(process.pid, how)
            array = np.zeros(100_000)
            work = groups[0].recv(array, 3) if waits else groups[0].send(array, 3)
            with pytest.raises(CollectiveError, match="rank 3 has left the group or is gone"):
                work.wait(50)
            for group in groups:
                assert eventually(lambda group=group: group.error is not None) and "rank 3" in str(group.error)
            list(pool.map(lambda group: group.close(), groups))
        finally:
            process.kill()
            process.communicate()


def test_a_shared_device_spins_again_when_the_last_group_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ranks share cores a group has its device's idle threads sleep at once. That ends with the group."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with Device(PLANES, lanes=1) as a, Device(PLANES, lanes=1) as b, ThreadPoolExecutor(2) as pool:
        usual = a._native.spin_us
        assert usual > 0
        with tempfile.TemporaryDirectory() as folder:

            def join(rank: int, name: str) -> Group:
                return Group.join(DirectoryStore(folder), rank, 2, device=(a, b)[rank], name=name)

            pairs = [list(pool.map(join, range(2), [name] * 2)) for name in ("one", "two")]
        assert a._native.spin_us == b._native.spin_us == 0
        for pair, expected in zip(pairs, (0, usual), strict=True):
            list(pool.map(Group.close, pair))
            assert a._native.spin_us == b._native.spin_us == expected
