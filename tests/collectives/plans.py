"""Plans of many ranks, carried out in memory by `native/plans.cpp`: one process, with one request for each case."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from softmrc import _core
from softmrc.collectives.block import CollectiveKind, DType, ReduceOp

ALGORITHMS = ("direct", "gathered", "doubling", "rounds", "ring", "binomial", "binary", "chain", "grid")
UNIT = 8 * 4096
CASE = struct.Struct("=IIIIiiIIQd")
Arrays = list[list[np.ndarray]]  # by rank, by part


@dataclass
class Outcome:
    """What became of one collective."""

    problem: str
    algorithm: str
    steps: int  # messages that waited for one another
    early: int  # messages of one rank for another that had not begun
    sent: list[int]  # bytes, by rank
    transfers: list[int]
    peers: list[int]
    outputs: Arrays


@dataclass
class Asked:
    """A collective of all ranks; `outputs` as they are before it."""

    kind: CollectiveKind
    inputs: Arrays
    outputs: Arrays
    root: int = -1
    op: ReduceOp = ReduceOp.SUM
    factor: float = 1.0
    in_place: bool = False

    @property
    def ranks(self) -> int:
        return len(self.outputs)

    @property
    def bytes(self) -> int:
        """What the choice of an algorithm goes by."""
        if self.kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER):
            return sum(part.nbytes for part in self.inputs[0])
        if self.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST):
            return sum(part.nbytes for part in self.outputs[0])
        return 0

    def algorithms(self) -> list[str]:
        """All that could carry it out."""
        return list(_core.collective_times(self.kind, self.ranks, self.bytes))


class Plans:
    """The program, as long as the tests run."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def __call__(self, asked: Asked, forced: str | None = None, seed: int = 0) -> Outcome:
        process, n = self._process, asked.ranks
        assert process.stdin and process.stdout
        dtype = DType[(asked.outputs[0] or asked.inputs[0] or [np.empty(0, np.uint8)])[0].dtype.name.upper()]
        at = -1 if forced is None else ALGORITHMS.index(forced)
        head = (asked.kind, dtype, asked.op, n, asked.root, at, asked.in_place, UNIT, seed, asked.factor)
        data = [CASE.pack(*head)]
        for ins, outs in zip(asked.inputs, asked.outputs, strict=True):
            sizes = [part.nbytes for part in (*ins, *outs)]
            data.append(struct.pack(f"=II{len(sizes)}Q", len(ins), len(outs), *sizes))
            data += [part.tobytes() for part in (*ins, *outs)]
        process.stdin.write(b"".join(data))
        process.stdin.flush()
        return self._answer(asked.outputs)

    def _numbers(self, layout: str) -> tuple[int, ...]:
        assert self._process.stdout
        return struct.unpack(f"={layout}", self._process.stdout.read(struct.calcsize(f"={layout}")))

    def _answer(self, shapes: Sequence[Sequence[np.ndarray]]) -> Outcome:
        assert self._process.stdout
        (length,) = self._numbers("I")
        problem = self._process.stdout.read(length).decode()
        algorithm, steps, early = self._numbers("III")
        found = Outcome(problem, ALGORITHMS[algorithm], steps, early, [], [], [], [])
        for parts in shapes:
            sent, transfers, peers = self._numbers("QQQ")
            found.sent.append(sent)
            found.transfers.append(transfers)
            found.peers.append(peers)
            read = [np.frombuffer(self._process.stdout.read(part.nbytes), part.dtype) for part in parts]
            found.outputs.append(read)
        return found
