"""A training job whose planes break: no error, and not one bit of the result changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
from tests.torch.test_training import model, trained
from tests.torch.world import Rank, World
from torch.nn.parallel import DistributedDataParallel as DDP

from softmrc.torch import device_of

pytestmark = pytest.mark.process

STEPS = 50


class Disturbed(nn.Module):
    """A model that breaks and repairs the network of its rank before some steps."""

    def __init__(self, inner: nn.Module, at_step: dict[int, Callable[[], None]]) -> None:
        super().__init__()
        self.inner = inner
        self._at_step = at_step
        self._step = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self._step in self._at_step:
            self._at_step[self._step]()
        self._step += 1
        return self.inner(inputs)


def orders(device: Any, kind: str, rank: int) -> dict[int, Callable[[], None]]:
    """What happens to this rank's planes, by step."""
    weather = {
        "black hole": lambda: device.set_faults(2, black_hole=True),
        "loss": lambda: device.set_faults(drop=0.02),
        "storm": lambda: device.set_faults(drop=0.01, reorder=0.1, duplicate=0.02, corrupt=0.01),
        "slow plane": lambda: device.set_faults(0, delay_us=5000.0),
        "port down": lambda: rank or device.set_port(1, False),
        "flapping": lambda: rank or device.set_port(3, False),
    }
    mend = {"port down": lambda: rank or device.set_port(1, True)}
    steps = {10: weather[kind], 35: mend.get(kind, device.set_faults)}
    if kind == "flapping":
        steps = {step: (lambda up=step % 2: rank or device.set_port(3, bool(up))) for step in range(10, 40)}
    return steps


def ride_through(here: Rank, kind: str) -> int:
    wide = nn.Sequential(nn.Linear(12, 300), nn.Tanh(), nn.Linear(300, 4))
    torch.manual_seed(1)
    for one in wide.parameters():
        nn.init.normal_(one, std=0.1)
    state = {name: one.clone() for name, one in wide.state_dict().items()}
    calm = trained(DDP(wide, bucket_cap_mb=0.01), here.rank, STEPS)
    wide.load_state_dict(state)
    net = Disturbed(wide, orders(device_of(), kind, here.rank))
    try:
        broken = trained(DDP(net, bucket_cap_mb=0.01), here.rank, STEPS)
    finally:
        device_of().set_faults()
        for plane in range(4):
            device_of().set_port(plane, True)
    assert calm[0] == broken[0], "losses differ"
    assert all(torch.equal(one, other) for one, other in zip(calm[1], broken[1], strict=True)), "weights differ"
    counts = [device_of().fault_stats(plane) for plane in range(4)]
    return sum(sum(one.values()) for one in counts)


@pytest.mark.parametrize("kind", ["black hole", "loss", "storm", "slow plane", "port down", "flapping"])
def test_ddp_is_bit_identical_through_faults(world: World, kind: str) -> None:
    touched = world.run(ride_through, kind)
    if kind not in ("port down", "flapping"):
        assert all(touched), "the faults touched no packet"


def as_gloo_through_a_fault(here: Rank) -> None:
    outcome = []
    for backend in ("mrc", "gloo"):
        group = here.group(2, backend)
        if here.rank < 2:
            stop = threading.Timer(0.05, lambda: device_of().set_faults(1, black_hole=True))
            stop.start()
            outcome.append(trained(DDP(model(), process_group=group), here.rank, STEPS))
            stop.join()
            device_of().set_faults()
    if here.rank < 2:
        (our_losses, ours), (their_losses, theirs) = outcome
        assert our_losses == their_losses
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_ddp_on_two_ranks_with_a_dead_plane_gives_what_gloo_gives(world: World) -> None:
    world.run(as_gloo_through_a_fault)
