"""What one seed decides about a group of ranks, as plain data: who calls what on which memory, and what goes wrong.

Every rank has an arena, cut into zones of one type each. A step is one call of every rank that takes part in it; steps
may share zones, and then mean what they say one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from softmrc.collectives import DType, ReduceOp
from softmrc.collectives.block import CollectiveKind
from softmrc.config import CcProfile, EndpointConfig, EvProfile
from softmrc.engine.pair import PairConfig, ProcessConfig

GAP = 0xA5  # what lies between zones, and must stay
SEND, RECEIVE = 100, 101  # kinds of calls besides the collectives


@dataclass(frozen=True)
class Span:
    """A part of an arena."""

    offset: int
    nbytes: int


@dataclass(frozen=True)
class Zone:
    span: Span
    dtype: DType
    is_product: bool  # its numbers are to be multiplied
    may_share: bool  # with another step


@dataclass(frozen=True)
class Share:
    """What one rank calls."""

    at_us: float
    kind: int
    dtype: DType
    inputs: tuple[Span, ...] = ()
    outputs: tuple[Span, ...] = ()
    op: ReduceOp = ReduceOp.SUM
    factor: float = 1.0
    root: int = -1
    peer: int = -1
    tag: int = 0


@dataclass
class Step:
    kind: int
    shares: dict[int, Share]  # by rank

    @property
    def any(self) -> Share:
        return next(iter(self.shares.values()))


@dataclass(frozen=True)
class Happening:
    """Something that happens at a moment: the runner calls the method of that name with these arguments."""

    at_us: float
    act: str
    args: tuple[Any, ...]


@dataclass
class GroupPlan:
    seed: int
    ranks: int
    planes: int
    network: PairConfig
    endpoint: EndpointConfig
    ev_profile: EvProfile
    cc_profile: CcProfile
    processes: list[ProcessConfig] | None
    mtu: int
    timeout_s: float
    joins_us: list[float]
    zones: list[Zone] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)
    arena_bytes: int = 0
    guilty: set[int] = field(default_factory=set)  # an error must name one of them
    silent: set[int] = field(default_factory=set)  # ranks that take no part any longer at the end
    algorithm: str | None = None  # wherever it is possible, instead of the cheapest
    max_send_wr: int = 1024
    lies: bool = False  # one rank's messages are not to be trusted, nor is what follows from them

    @property
    def last_change_us(self) -> float:
        calls = [share.at_us for step in self.steps for share in step.shares.values()]
        return max([0.0, *self.joins_us, *calls, *(h.at_us for h in self.happenings)])

    @property
    def is_doomed(self) -> bool:
        """Something happens after which the group cannot go on."""
        return bool(self.guilty)


def parts_of(at: int, counts: list[int], size: int) -> tuple[Span, ...]:
    """Side by side."""
    spans = []
    for count in counts:
        spans.append(Span(at, count * size))
        at += count * size
    return tuple(spans)


REDUCING = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.REDUCE)
ROOTED = (CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.GATHER, CollectiveKind.SCATTER)
