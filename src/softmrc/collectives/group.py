"""A group of ranks, and what they can do together."""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from softmrc._support.fork import disown_in_child
from softmrc.collectives.block import Block, CollectiveKind, DType, ReduceOp, as_block, as_parts
from softmrc.collectives.inflight import InflightOps, MemoryClaim, NativeOp
from softmrc.collectives.rank_info import MAX_CHANNELS
from softmrc.collectives.recorder import recorder_of
from softmrc.collectives.rendezvous import GroupJoin, PeerQueuePairs
from softmrc.collectives.store_rendezvous import StoreRendezvous
from softmrc.collectives.work import CollectiveError, Work, callback_thread, suppress_errors
from softmrc.config import DeviceConfig
from softmrc.config.planes import LocalPlane, resolve_all
from softmrc.connection.bootstrap import secret_of
from softmrc.device import Device, shutdown
from softmrc.device.checks import whole
from softmrc.device.width import lanes_of_rank, processes_here
from softmrc.errors import ConfigError

Memory = Block | Any  # a Block, a NumPy array, or any contiguous buffer of a known dtype
Parts = Memory | Sequence[Memory]
ANY_SOURCE = -1
DEFAULT_PLANES = ("127.0.0.1",)
SILENT = re.compile(r"rank (\d+) stopped answering")  # as `core/collectives/error_text.cpp` says it
LINGER_AFTER_FAILURE_S = 1.0
_open: weakref.WeakSet[Group] = weakref.WeakSet()


class Group:
    """Ranks that have joined. Collectives must be issued in the same order by all; send and recv may interleave.

    Every method returns at once with a `Work`. Several may be under way; one that shares memory with an earlier one
    waits for it. `timeout_s` of an operation counts from its issue (None: the group's); when it is over the operation
    fails on every rank. Any failure is final for the group: later operations fail with the same words.
    """

    def __init__(self, meeting: GroupJoin, timeout_s: float, owns_device: bool) -> None:
        self.rank = meeting.rank
        self.size = meeting.size
        self.device = meeting.device  # live: stats, planes, set_faults, set_port, events
        self.timeout_s = timeout_s  # of operations that are given none
        self._owns_device = owns_device
        self._meeting = meeting
        self._closed = True  # until it is open
        self._native = meeting.meet(callback_thread().notifier)
        self.lanes: int = self._native.channels  # over which large operations are spread
        disown_in_child(self, f"rank {self.rank} of the group")
        self._explanations: dict[str, str] = {}  # of what ended the group
        self._closed = False
        self._recorder = recorder_of(self, meeting.name, meeting.rendezvous.nonce)
        self.inflight = InflightOps(self._recorder)
        _open.add(self)
        self.device.groups.add(self)

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
        lanes: int | None = None,
        name: str = "group",
    ) -> Self:
        """Meet the other ranks through `store`. Connections are made when two of them first speak to each other.

        Groups of one process may share a `device`; else one is made on `planes` (default: 127.0.0.1) and closed with
        the group. Large operations are spread over so many `lanes` of it, or fewer where another rank has fewer; the
        default depends on the processors and ranks of this host. `name` keeps groups apart that share a
        store. A rank that does not come is named in a `CollectiveError`."""
        owns_device = device is None
        if device is not None and (planes is not None or device_config is not None):
            raise ConfigError("device", device, "cannot be combined with planes or a configuration")
        _positive("timeout_s", timeout_s)
        if lanes is not None and not 1 <= whole("lanes", lanes, 32) <= MAX_CHANNELS:
            raise ConfigError("lanes", lanes, f"must be 1 to {MAX_CHANNELS}, or None: by processors and ranks")
        rendezvous = StoreRendezvous(store, name, rank, size, timeout_s, secret_of(None))
        config, made = device_config or DeviceConfig(), device
        try:
            if size > 1:
                rendezvous.start()
            made = device or made_for(planes or DEFAULT_PLANES, config, size, lanes)
            is_firm = bool(lanes or (device.config if device else config).lanes)
            most = min(lanes or MAX_CHANNELS, made.lanes)
            return cls(GroupJoin(rendezvous, rank, size, made, timeout_s, most, is_firm), timeout_s, owns_device)
        except BaseException as error:
            suppress_errors(functools.partial(rendezvous.excuse, error))
            if owns_device and made:
                made.close()
            raise

    def _issue(
        self,
        kind: CollectiveKind,
        dtype: DType,
        inputs: Sequence[Block],
        outputs: Sequence[Block],
        timeout_s: float | None,
        op: ReduceOp = ReduceOp.SUM,
        factor: float = 1.0,
        root: int = -1,
    ) -> Work:
        for block in (*inputs, *outputs):
            if block.dtype != dtype:
                raise ConfigError(
                    "dtype", block.dtype.name, f"must be one type for all memory of an operation, here {dtype.name}"
                )
        native = self._native.issue(
            kind,
            dtype,
            op,
            factor,
            root,
            [(block.address, block.nbytes) for block in inputs],
            [(block.address, block.nbytes) for block in outputs],
            self._limit(timeout_s),
        )
        nbytes, recorder = sum(block.nbytes for block in inputs or outputs), self._recorder
        record = None if recorder is None else recorder.begin(int(kind), nbytes)
        return self._work(native, (*inputs, *outputs), record)

    def _limit(self, timeout_s: float | None) -> float:
        return self.timeout_s if timeout_s is None else _positive("timeout_s", timeout_s)

    def _work(self, native: Any, blocks: Sequence[Block], record: int | None = None, is_message: bool = False) -> Work:
        op = NativeOp(native, blocks, record, is_collective=not is_message)
        self.inflight.add(op)
        return Work(self, op)

    def wait_until_over(self, ops: Sequence[NativeOp | MemoryClaim]) -> None:
        """Until they have ended, well or not."""
        for op in ops:
            if isinstance(op, MemoryClaim):
                op.wait()
            else:
                suppress_errors(Work(self, op).wait)

    def wait_native(self, native: Any, timeout_s: float) -> bool:
        """Whether it ended in time. The calling thread drives the device while it waits, without the GIL."""
        return self._native.wait(native, timeout_s)

    def all_reduce(
        self,
        input: Memory,
        output: Memory | None = None,
        op: ReduceOp = ReduceOp.SUM,
        *,
        factor: float = 1.0,
        timeout_s: float | None = None,
    ) -> Work:
        """Everybody gets the reduction of all inputs; without `output`, in place."""
        source = as_block(input, writable=output is None)
        to = source if output is None else as_block(output)
        return self._issue(CollectiveKind.ALL_REDUCE, source.dtype, (source,), (to,), timeout_s, op, factor)

    def reduce_scatter(
        self,
        input: Parts,
        output: Memory,
        op: ReduceOp = ReduceOp.SUM,
        *,
        factor: float = 1.0,
        timeout_s: float | None = None,
    ) -> Work:
        """Rank r gets the reduction of everybody's part r. `input`: `size` parts, or one block that is cut evenly."""
        to = as_block(output)
        parts = as_parts(input, self.size, writable=False)
        return self._issue(CollectiveKind.REDUCE_SCATTER, to.dtype, parts, (to,), timeout_s, op, factor)

    def all_gather(self, input: Memory, output: Parts, *, timeout_s: float | None = None) -> Work:
        """Everybody gets everybody's input. `output`: `size` parts (they may differ in length), or one block."""
        source = as_block(input, writable=False)
        return self._issue(CollectiveKind.ALL_GATHER, source.dtype, (source,), as_parts(output, self.size), timeout_s)

    def broadcast(self, memory: Memory, root: int = 0, *, timeout_s: float | None = None) -> Work:
        """Everybody gets what the root has."""
        block = as_block(memory, writable=self.rank != root)
        return self._issue(CollectiveKind.BROADCAST, block.dtype, (), (block,), timeout_s, root=root)

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
        """The root gets the reduction of all inputs, in place without `output`; the others' memory is only read."""
        is_root = self.rank == root
        source = as_block(input, writable=is_root and output is None)
        outputs = () if not is_root else (source if output is None else as_block(output),)
        return self._issue(CollectiveKind.REDUCE, source.dtype, (source,), outputs, timeout_s, op, factor, root)

    def gather(
        self, input: Memory, output: Parts | None = None, root: int = 0, *, timeout_s: float | None = None
    ) -> Work:
        """The root gets everybody's input; `output` is needed there alone."""
        source = as_block(input, writable=False)
        outputs = as_parts(output, self.size) if self.rank == root else ()
        return self._issue(CollectiveKind.GATHER, source.dtype, (source,), outputs, timeout_s, root=root)

    def scatter(
        self, output: Memory, input: Parts | None = None, root: int = 0, *, timeout_s: float | None = None
    ) -> Work:
        """Rank r gets part r of the root's `input`, which is needed there alone."""
        to = as_block(output)
        inputs = as_parts(input, self.size, writable=False) if self.rank == root else ()
        return self._issue(CollectiveKind.SCATTER, to.dtype, inputs, (to,), timeout_s, root=root)

    def all_to_all(
        self,
        input: Parts,
        output: Parts,
        input_counts: Sequence[int] | None = None,
        output_counts: Sequence[int] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Work:
        """Part p of the input goes to rank p, part p of the output comes from rank p. Counts cut one block unevenly."""
        sources = as_parts(input, self.size, input_counts, writable=False)
        targets = as_parts(output, self.size, output_counts)
        return self._issue(CollectiveKind.ALL_TO_ALL, targets[0].dtype, sources, targets, timeout_s)

    def barrier(self, *, timeout_s: float | None = None) -> Work:
        """Done when every rank has called it."""
        return self._issue(CollectiveKind.BARRIER, DType.UINT8, (), (), timeout_s)

    def send(self, memory: Memory, to: int, tag: int = 0, *, timeout_s: float | None = None) -> Work:
        """To a `recv` of the same tag and length, in the order of issue. A small one ends when it has been copied."""
        self._check_peer("to", to)
        block = as_block(memory, writable=False)
        timeout = self._limit(timeout_s)
        native = self._native.send(block.address, block.nbytes, block.dtype, to, _tag(tag), timeout)
        return self._work(native, (block,), is_message=True)

    def recv(self, memory: Memory, source: int = ANY_SOURCE, tag: int = 0, *, timeout_s: float | None = None) -> Work:
        """From a rank, or from the rank that sends first: `work.source` says who, once it is done."""
        if source != ANY_SOURCE:
            self._check_peer("source", source)
        block = as_block(memory)
        timeout = self._limit(timeout_s)
        native = self._native.receive(block.address, block.nbytes, block.dtype, source, _tag(tag), timeout)
        return self._work(native, (block,), is_message=True)

    def _check_peer(self, field: str, rank: int) -> None:
        if not 0 <= rank < self.size or rank == self.rank:
            raise ConfigError(field, rank, f"must be another rank of the group of {self.size}")

    @property
    def error(self) -> CollectiveError | None:
        """What ended the group, if something did."""
        text = self._native.error
        return CollectiveError(self.explained(text)) if text else None

    def explained(self, text: str) -> str:
        """The same, and where a rank stopped answering this one, what was tried."""
        if text not in self._explanations:
            silent = SILENT.fullmatch(text)
            more = self._meeting.tried(int(silent[1])) if silent and not self._closed else ""
            self._explanations.setdefault(text, f"{text}: {more}" if more else text)
        return self._explanations[text]

    @property
    def pairs(self) -> dict[int, tuple[PeerQueuePairs, ...]]:
        """The queue pairs to every peer that this rank has spoken with, by channel."""
        found = ((peer, self._meeting.pairs_of(self._native, peer)) for peer in range(self.size) if peer != self.rank)
        return {peer: pairs for peer, pairs in found if pairs}

    def stats(self) -> dict[str, int]:
        """Counters: operations and those that went by messages alone, sends, receives, messages, slices, bytes."""
        return self._native.stats()

    def abort(self, reason: str = "as its caller asked") -> None:
        """End everything under way with an error, here and on every rank. From any thread; waiting threads return."""
        self._native.abort(reason)

    def close(self, linger_s: float = shutdown.FLUSH_S) -> None:
        """Leave. When this returns, what was sent is acknowledged and the peers know that this rank has left, unless
        they did not answer for `linger_s`. What they sent is acknowledged later still, as `Device.close` says.
        Operations under way fail, on every rank."""
        if self._closed:
            return
        self._closed = True
        if self._recorder is not None:
            self._recorder.close()
        if linger_s:
            self._meeting.wait_to_be_seen(self._native)
        # A rank that is gone acknowledges nothing; bad news reaches those who live within a few timeouts.
        self._native.close(min(linger_s, LINGER_AFTER_FAILURE_S) if self.error else linger_s)
        self.inflight.clear()
        _open.discard(self)
        self.device.groups.discard(self)
        if not self.device.native.is_closed:
            self._meeting.leave()
        if self._owns_device:
            self.device.close()

    def __del__(self) -> None:
        """One that was dropped leaves a device that it shares as it found it."""
        if not getattr(self, "_closed", True):
            suppress_errors(functools.partial(self.close, 0.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort(f"{kind.__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else f", {self.error}" if self.error else ""
        return f"<Group rank {self.rank} of {self.size}{state}>"


def made_for(planes: Sequence[str], config: DeviceConfig, size: int, lanes: int | None = None, **more: Any) -> Device:
    """A device for a rank of so many, as wide as it can use unless the configuration says."""
    found = resolve_all(planes, more.get("why", ""))
    return Device(found, widened(config, found, size, lanes), **more)


def widened(config: DeviceConfig, planes: Sequence[LocalPlane], size: int, lanes: int | None = None) -> DeviceConfig:
    """With so many lanes. On loopback all ranks share this host."""
    if config.lanes or (config.port and not lanes):
        return config
    ranks_here = processes_here(unless_said=size if all(plane.address.is_loopback for plane in planes) else 1)
    return _with_lanes(config, lanes or lanes_of_rank(ranks_here, [plane.speed_bps for plane in planes]))


@functools.lru_cache(8)
def _with_lanes(config: DeviceConfig, lanes: int) -> DeviceConfig:
    return replace(config, lanes=lanes)


def _positive(field: str, seconds: Any) -> float:
    if not isinstance(seconds, int | float) or not seconds > 0:
        raise ConfigError(field, seconds, "must be a number of seconds above 0")
    return float(seconds)


def _tag(tag: int) -> int:
    if not 0 <= tag < 1 << 32:
        raise ConfigError("tag", tag, "must be 0 to 4294967295")
    return tag


def _close_all() -> None:
    for group in list(_open):
        suppress_errors(functools.partial(group.close, 1.0))


shutdown.at_exit(_close_all)
