"""How well the mapper names what is broken: faults drawn at random in a simulated fabric, and what it said of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from softmrc.fabric import Shape
from softmrc.ops.mapper import Component, ComponentKind, Mapper, MapperSettings, State
from softmrc.ops.mapper.components import Components
from softmrc.ops.mapper.probes import Prober
from softmrc.ops.mapper.simulated import SimulatedFabric

SHAPE = Shape(planes=4, hosts=512, hosts_per_leaf=32, spines=8)
SETTINGS = MapperSettings(lanes=4)
STEPS = 7
_KINDS = {
    ComponentKind.LINK: 5,
    ComponentKind.DIRECTION: 5,
    ComponentKind.PORT: 5,
    ComponentKind.TRANSCEIVER: 2,
    ComponentKind.SWITCH: 2,
    ComponentKind.HOST: 1,
    ComponentKind.PLANE: 0.5,
}
_STATES = {State.DEAD: 3, State.LOSSY: 4, State.SLOW: 2, State.FLAPPING: 2, State.CORRUPTING: 2}
_LOSSES = (0.01, 0.01, 0.02, 0.05, 0.3)


@dataclass(frozen=True)
class Planted:
    """A fault that a trial puts in, and the mapper should name."""

    component: Component
    state: State
    value: float
    at_s: float

    @property
    def key(self) -> tuple[str, State]:
        return self.component.name, self.state


@dataclass
class Trial:
    """One fabric with one to three faults, and what was said of it."""

    planted: list[Planted]
    named: set[tuple[str, State]] = field(default_factory=set)
    dead_named_after_s: list[float] = field(default_factory=list)
    bandwidth_share: float = 0.0

    @property
    def right(self) -> int:
        return len({one.key for one in self.planted} & self.named)


class MapperTrials:
    """Trials on fabrics of one shape; what they have in common is made once."""

    def __init__(self, shape: Shape = SHAPE, settings: MapperSettings = SETTINGS) -> None:
        self.shape, self.settings = shape, settings
        self.components = Components(shape, settings.lanes)
        self.prober = Prober(self.components)
        self._by_kind = {kind: np.flatnonzero(self.components.rank == i) for i, kind in enumerate(ComponentKind)}

    def draw(self, seed: int) -> list[Planted]:
        """One to three faults that share no link."""
        rng = np.random.default_rng(seed)
        found: list[Planted] = []
        taken: set[int] = set()
        kinds = [kind for kind in _KINDS if len(self._by_kind[kind])]
        weights = np.array([_KINDS[kind] for kind in kinds], dtype=float)
        states = list(_STATES)
        count = int(rng.integers(1, 4))
        while len(found) < count:
            kind = kinds[rng.choice(len(kinds), p=weights / weights.sum())]
            state = states[rng.choice(len(states), p=np.array(list(_STATES.values())) / sum(_STATES.values()))]
            component = self.components.component(int(rng.choice(self._by_kind[kind])))
            # Nothing that returns to its sender tells which way of a NIC's cable is slow.
            is_half_port = kind is ComponentKind.DIRECTION and ("host" in component.name)
            if taken & set(component.links) or (state is State.SLOW and is_half_port):
                continue
            taken |= set(component.links)
            value = {
                State.LOSSY: float(rng.choice(_LOSSES)),
                State.CORRUPTING: float(rng.choice(_LOSSES)),
                State.SLOW: float(rng.uniform(0.1, 0.5)),
                State.FLAPPING: float(rng.uniform(0.03, 0.08)),
            }
            found.append(Planted(component, state, value.get(state, 0.0), float(rng.uniform(0.05, 0.3))))
        return found

    def run(self, seed: int, steps: int = STEPS) -> Trial:
        trial = Trial(self.draw(seed))
        fabric = SimulatedFabric(self.shape, seed + 1)
        for one in trial.planted:
            _plant(fabric, one)
        mapper = Mapper(fabric, self.settings, self.prober)
        waiting = {one.key: one.at_s for one in trial.planted if one.state is State.DEAD}
        for _ in range(steps):
            trial.named = {one.key for one in mapper.step()}
            for key in [key for key in waiting if key in trial.named]:
                trial.dead_named_after_s.append(fabric.now_s - waiting.pop(key))
        trial.dead_named_after_s += [float("inf")] * len(waiting)
        trial.bandwidth_share = mapper.bandwidth_share(fabric.now_s)
        return trial


def _plant(fabric: SimulatedFabric, one: Planted) -> None:
    links = one.component.links
    if one.state is State.FLAPPING:
        for i in range(30):
            fabric.break_links("heal" if i % 2 else "black_hole", links, one.at_s + i * one.value)
        return
    kind = {State.DEAD: "black_hole", State.LOSSY: "loss", State.SLOW: "slow", State.CORRUPTING: "corrupt"}[one.state]
    fabric.break_links(kind, links, one.at_s, one.value)


def measure(trials: int = 200, seed: int = 1, shape: Shape = SHAPE) -> dict[str, float]:
    """Precision and recall over so many trials, the longest time until a dead component was named, the bandwidth."""
    start = time.monotonic()
    many = MapperTrials(shape)
    ran = [many.run(seed + i) for i in range(trials)]
    right, named = sum(one.right for one in ran), sum(len(one.named) for one in ran)
    planted = sum(len(one.planted) for one in ran)
    slowest = max((after for one in ran for after in one.dead_named_after_s), default=0.0)
    return {
        "mapper_trials": trials,
        "mapper_faults": planted,
        "mapper_precision": right / max(named, 1),
        "mapper_recall": right / max(planted, 1),
        "mapper_seconds": slowest,
        "mapper_bandwidth_share": max(one.bandwidth_share for one in ran),
        "took_s": time.monotonic() - start,
    }
