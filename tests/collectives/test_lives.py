"""Whatever order ranks do things in, and whichever dies and comes back: those that are ready are so together."""

from __future__ import annotations

import os
from collections import defaultdict

import pytest

from collectives.lives import MORE, WHOLE, Crash, Life, World, check_safety

pytestmark = pytest.mark.slow

SEEDS = int(os.environ.get("SOFTMRC_GROUP_SEEDS", "60"))
HOW = (WHOLE, MORE, "either")


def life_of(world: World, rank: int, run: int, how: str) -> Life:
    how = world.random.choice((WHOLE, MORE)) if how == "either" else how
    return Life(rank, run, f"run {run} rank {rank} life {len(world.lives)} says {how}")


def told(seed: int, world: World) -> str:
    return f"seed {seed}, size {world.size}: {world.lives}"


@pytest.mark.parametrize("how", HOW)
def test_one_run_after_another(how: str) -> None:
    """On one store, under one name; who is done early begins the next while others have not seen that all are ready."""
    for seed in range(SEEDS):
        world = World(seed, 2 + seed % 3)

        def go_on(life: Life, world: World = world) -> None:
            if life.run < 2:
                world.begin(life_of(world, life.rank, life.run + 1, how), world.random.choice((0.0, 0.01, 0.3)))

        for rank in range(world.size):
            world.begin(life_of(world, rank, 0, how), world.random.choice((0.0, 0.05, 0.5)))
        world.run(go_on)
        ready = check_safety(world.lives)
        assert all(life.ready for life in world.lives), told(seed, world)
        assert len(ready) == 3, told(seed, world)
        assert all(len({life.run for life in together}) == 1 for together in ready.values()), told(seed, world)


@pytest.mark.parametrize("how", HOW)
def test_all_are_ended_and_begin_again(how: str) -> None:
    """Wherever they were."""
    for seed in range(SEEDS):
        world = World(seed, 2 + seed % 3)
        ends_at = world.random.randrange(1, 30)

        def again(life: Life, world: World = world) -> None:
            if life.rank == 0 and life.run == 0:
                world.end_all()
            if all(one.has_ended for one in world.lives) and life.run == 0:
                for rank in range(world.size):
                    world.begin(life_of(world, rank, 1, how), world.random.choice((0.0, 0.05, 0.5)))

        for rank in range(world.size):
            life = world.begin(life_of(world, rank, 0, how))
            life.crashes_at = ends_at if rank == 0 else -1
        world.run(again)
        check_safety(world.lives)
        last = [life for life in world.lives if life.run == 1]
        assert len(last) == world.size and len({life.ready for life in last} - {""}) == 1, told(seed, world)
        assert all(life.ready for life in last), told(seed, world)


@pytest.mark.parametrize("how", HOW)
def test_some_crash_and_come_back_alone(how: str) -> None:
    """The others were not notified. They are all ready with the rank that came back, or with the one that died,
    which they will notice; none waits for others that are neither."""
    outcomes: defaultdict[str, int] = defaultdict(int)
    for seed in range(2 * SEEDS):
        world = World(seed, 2 + seed % 3)

        def again(life: Life, world: World = world, crashes: int = 1 + seed % 4) -> None:
            if isinstance(life.error, Crash):
                fresh = life_of(world, life.rank, 0, how)
                if sum(isinstance(one.error, Crash) for one in world.lives) < crashes:
                    fresh.crashes_at = world.random.randrange(30)
                world.begin(fresh, world.random.choice((0.0, 0.05, 0.5)))

        for rank in range(world.size):
            world.begin(life_of(world, rank, 0, how), world.random.choice((0.0, 0.0, 0.5)))
        world.lives[world.random.randrange(world.size)].crashes_at = world.random.randrange(30)
        world.run(again)
        ready = check_safety(world.lives)
        dead = {life.words for life in world.lives if isinstance(life.error, Crash)}
        waited = [life for life in world.lives if not life.ready and life.words not in dead]
        with_dead = [one for one, together in ready.items() if dead & set(together[0].said)]
        assert not waited or with_dead, told(seed, world)
        outcomes["with the dead" if with_dead else "with who came back" if not waited else "not"] += 1
    assert outcomes["with the dead"] and outcomes["with who came back"], outcomes


@pytest.mark.parametrize("how", HOW)
def test_runs_in_which_anybody_may_crash(how: str) -> None:
    """And comes back, and goes on with the next run when it has been ready, or has waited for others in vain."""
    for seed in range(SEEDS):
        world = World(seed, 2 + seed % 3)

        def go_on(life: Life, world: World = world) -> None:
            run = life.run + (not isinstance(life.error, Crash))
            if run < 3 and len(world.lives) < 20:
                fresh = life_of(world, life.rank, run, how)
                fresh.crashes_at = world.random.choice((-1, world.random.randrange(40)))
                world.begin(fresh, world.random.choice((0.0, 0.01, 0.3)))

        for rank in range(world.size):
            world.begin(life_of(world, rank, 0, how)).crashes_at = world.random.choice((-1, world.random.randrange(40)))
        world.run(go_on)
        check_safety(world.lives)
