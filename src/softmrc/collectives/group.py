"""A group of ranks, and what they can do together."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from softmrc.collectives.block import Block, ReduceOp
from softmrc.collectives.work import Work
from softmrc.config import DeviceConfig
from softmrc.verbs import Device

Memory = Block | Any  # a Block, a NumPy array, or any contiguous buffer of a known dtype
ANY_SOURCE = -1


class Group:
    """Ranks that have joined. Collectives must be issued in the same order by all; send and recv may interleave.

    Every method returns at once with a `Work`. Several may be under way; one that shares memory with an earlier one
    waits for it. `timeout_s` of an operation counts from its issue (None: the group's); when it is over the operation
    fails on every rank. Any failure is final for the group: later operations raise the same error.
    """

    rank: int
    size: int
    device: Device  # live: stats, planes, set_faults, set_port, events
    timeout_s: float

    @classmethod
    def join(
        cls,
        store: Any,
        rank: int,
        size: int,
        *,
        planes: Sequence[str] | None = None,
        timeout_s: float = 30.0,
        device_config: DeviceConfig | None = None,
        device: Device | None = None,
        name: str = "group",
    ) -> Self:
        """Meet the other ranks through `store` and connect to each.

        Groups of one process may share a `device`; else one is made on `planes` (default: 127.0.0.1) and closed with the
        group. `name` keeps groups apart that share a store. A rank that does not come: `CollectiveError` that names it."""
        raise NotImplementedError

    # In place when `output` is None or the same memory as `input`.
    def all_reduce(
        self,
        input: Memory,
        output: Memory | None = None,
        op: ReduceOp = ReduceOp.SUM,
        *,
        factor: float = 1.0,
        timeout_s: float | None = None,
    ) -> Work:
        """Everybody gets the reduction of all inputs."""
        raise NotImplementedError

    def reduce_scatter(
        self,
        input: Memory | Sequence[Memory],
        output: Memory,
        op: ReduceOp = ReduceOp.SUM,
        *,
        factor: float = 1.0,
        timeout_s: float | None = None,
    ) -> Work:
        """Rank r gets the reduction of everybody's part r. `input`: `size` parts, or one block that is cut evenly."""
        raise NotImplementedError

    def all_gather(
        self, input: Memory, output: Memory | Sequence[Memory], *, timeout_s: float | None = None
    ) -> Work:
        """Everybody gets everybody's input. `output`: `size` parts (they may differ in length), or one block."""
        raise NotImplementedError

    def broadcast(self, memory: Memory, root: int = 0, *, timeout_s: float | None = None) -> Work:
        """Everybody gets what the root has."""
        raise NotImplementedError

    def reduce(
        self,
        input: Memory,
        output: Memory | None = None,
        root: int = 0,
        op: ReduceOp = ReduceOp.SUM,
        *,
        factor: float = 1.0,
        timeout_s: float | None = None,
    ) -> Work:
        """The root gets the reduction of all inputs; the memory of the others is only read."""
        raise NotImplementedError

    def gather(
        self,
        input: Memory,
        output: Memory | Sequence[Memory] | None = None,
        root: int = 0,
        *,
        timeout_s: float | None = None,
    ) -> Work:
        """The root gets everybody's input; `output` is needed there alone."""
        raise NotImplementedError

    def scatter(
        self,
        output: Memory,
        input: Memory | Sequence[Memory] | None = None,
        root: int = 0,
        *,
        timeout_s: float | None = None,
    ) -> Work:
        """Rank r gets part r of the root's `input`, which is needed there alone."""
        raise NotImplementedError

    def all_to_all(
        self,
        input: Memory | Sequence[Memory],
        output: Memory | Sequence[Memory],
        input_counts: Sequence[int] | None = None,
        output_counts: Sequence[int] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Work:
        """Part p of the input goes to rank p, part p of the output comes from rank p. Counts cut one block unevenly."""
        raise NotImplementedError

    def send(self, memory: Memory, to: int, tag: int = 0, *, timeout_s: float | None = None) -> Work:
        """To a `recv` of the same tag, and length, in the order of issue."""
        raise NotImplementedError

    def recv(self, memory: Memory, source: int = ANY_SOURCE, tag: int = 0, *, timeout_s: float | None = None) -> Work:
        """From a rank, or from whoever sends first: `work.source` says who, once it is done."""
        raise NotImplementedError

    def barrier(self, *, timeout_s: float | None = None) -> Work:
        """Done when every rank has called it."""
        raise NotImplementedError

    @property
    def error(self) -> Exception | None:
        """What ended the group, if something did."""
        raise NotImplementedError

    def stats(self) -> dict[str, int]:
        """Counters of the group: operations, messages, bytes, by algorithm."""
        raise NotImplementedError

    def abort(self, reason: str = "aborted") -> None:
        """End everything under way with an error, here and on every rank. From any thread; waiting threads return."""
        raise NotImplementedError

    def close(self, linger_s: float = 5.0) -> None:
        """Leave. What was sent is acknowledged, and the peers know that this rank has left, when this returns.
        Operations under way are aborted."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort(f"{kind.__name__}: {error}")
        self.close()
