"""The flight recorder: the last operations of this process, and how far each came.

People look at it when a job hangs. It is written in the form that torch's own tools read (`torchfrtrace`), by `dump`,
or by itself when an operation fails and `TORCH_FR_DUMP_TEMP_FILE` says where; `TORCH_FR_BUFFER_SIZE` is how many
operations it keeps (default 2 000; 0: none).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from softmrc._support.threads import fork_safe_lock

DEFAULT_ENTRIES = 2000
VERSION = "2.10"  # of torch's form
READ_AS = "gloo"  # torch's tools read dumps of backends that they know, and no others
SIZES_NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FILE_NAMES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


KINDS = {
    "all_reduce": "ALLREDUCE",
    "sparse_all_reduce": "_ALLREDUCE_SPARSE",
    "allreduce_coalesced": "ALLREDUCE_COALESCED",
    "reduce": "REDUCE",
    "reduce_scatter": "REDUCE_SCATTER",
    "_reduce_scatter_base": "_REDUCE_SCATTER_BASE",
    "reduce_scatter_tensor_coalesced": "REDUCE_SCATTER_TENSOR_COALESCED",
    "broadcast": "BROADCAST",
    "all_gather": "ALLGATHER",
    "_all_gather_base": "_ALLGATHER_BASE",
    "all_gather_into_tensor_coalesced": "ALLGATHER_COALESCED",
    "ALLGATHER_coalesced": "ALLGATHER_COALESCED",
    "gather": "GATHER",
    "scatter": "SCATTER",
    "all_to_all": "ALLTOALL",
    "barrier": "BARRIER",
    "send": "SEND",
    "recv": "RECV",
    "recvAnySource": "RECVANYSOURCE",
}


class GroupInfo(NamedTuple):
    """The group of an operation, as it is shown."""

    name: str
    description: str
    ranks: tuple[int, ...]


class Shapes(NamedTuple):
    sizes: list[list[int]]
    dtypes: list[str]

    @classmethod
    def of(cls, tensors: Iterable[tuple[torch.Size, torch.dtype]]) -> Shapes:
        """A list of tensors that look alike is shown as the tensor that they would make."""
        pairs = [(list(size), str(dtype).removeprefix("torch.").title()) for size, dtype in tensors]
        if len(pairs) > 1 and all(one == pairs[0] for one in pairs):
            pairs = [([len(pairs), *pairs[0][0]], pairs[0][1])]
        return cls([size for size, _ in pairs], [dtype for _, dtype in pairs])


class OpRecord:
    """One operation. It keeps no tensor alive."""

    def __init__(
        self,
        name: str,
        sequence: int,
        is_collective: bool,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        self.name, self.sequence, self.is_collective = name, sequence, is_collective
        self._inputs = [(one.shape, one.dtype) for one in inputs]
        self._outputs = [(one.shape, one.dtype) for one in outputs]
        self.begun_ns, self.ended_ns = time.time_ns(), 0
        self.number, self.error = 0, ""
        self.origin: GroupInfo | None = None
        self._operation: Any = None

    def begin(self, operation: Any) -> None:
        self._operation = operation

    def end(self, error: Exception | None = None) -> None:
        """Record that it has ended, and how."""
        if self.ended_ns:
            return
        self.ended_ns = time.time_ns()
        self._operation = None  # with it goes the group
        if error is not None:
            self.error = str(error)
            recorder.write_failure()

    def forget_operation(self) -> None:
        if self.state == "completed":
            self.end()
        self._operation = None

    @property
    def kind(self) -> Any:
        """In torch's words."""
        from torch._C._distributed_c10d import OpType  # type: ignore[attr-defined]

        return getattr(OpType, KINDS.get(self.name.split(" ")[0], "UNKNOWN"), OpType.UNKNOWN)

    @property
    def duration_ms(self) -> float:
        if not self.ended_ns:
            raise RuntimeError("the operation has not ended, or has not been queried since it did: wait for it first")
        return (self.ended_ns - self.begun_ns) / 1e6

    @property
    def state(self) -> str:
        """In torch's words. If no caller has waited, this queries the operation."""
        if self.ended_ns:
            return "completed" if not self.error else "started"
        operation = self._operation
        return "scheduled" if operation is None else "completed" if operation.done else "started"

    def entry(self) -> dict[str, Any]:
        assert self.origin is not None
        inputs, outputs, state = Shapes.of(self._inputs), Shapes.of(self._outputs), self.state
        name = {"recvAnySource": "recv", "sparse_all_reduce": "all_reduce"}.get(self.name.split(" ")[0], self.name)
        return {
            "record_id": self.number,
            "pg_id": 0,
            "process_group": (self.origin.name, self.origin.description),
            "collective_seq_id": self.sequence if self.is_collective else 0,
            "p2p_seq_id": 0 if self.is_collective else self.sequence,
            "op_id": self.number,
            "profiling_name": f"{READ_AS}:{name}",
            "time_created_ns": self.begun_ns,
            "time_discovered_started_ns": self.begun_ns if state != "scheduled" else None,
            "time_discovered_completed_ns": self.ended_ns or None,
            **({"duration_ms": self.duration_ms} if self.ended_ns else {}),
            "input_sizes": inputs.sizes,
            "input_dtypes": inputs.dtypes,
            "output_sizes": outputs.sizes,
            "output_dtypes": outputs.dtypes,
            "state": state,
            "error": self.error,
            "timeout_ms": 0,
            "is_p2p": not self.is_collective,
            "retired": bool(self.ended_ns),
            "frames": [],
        }


class FlightRecorder:
    """Of a process. From any thread."""

    def __init__(self, size: int) -> None:
        self._records: deque[OpRecord] = deque(maxlen=size)
        self._count = 0
        self._lock = fork_safe_lock()
        self._has_written = False

    def add(self, record: OpRecord, origin: GroupInfo) -> None:
        record.origin = origin
        with self._lock:
            self._count += 1
            record.number = self._count
            self._records.append(record)

    def forget_operations(self, origin: GroupInfo) -> None:
        """A group is left; its pending operations are no longer queried."""
        for one in self._listed():
            if one.origin is origin:
                one.forget_operation()

    def _listed(self) -> list[OpRecord]:
        with self._lock:
            return list(self._records)

    def dump(self) -> dict[str, Any]:
        records = self._listed()
        groups = {one.origin.name: one.origin for one in records if one.origin}
        return {
            "version": VERSION,
            "pg_config": {
                name: {"name": name, "desc": one.description, "ranks": str(list(one.ranks))}
                for name, one in groups.items()
            },
            "pg_status": {},
            "entries": [one.entry() for one in records],
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        Path(path).write_bytes(pickle.dumps(self.dump()))

    def write_failure(self) -> None:
        """Once a process: what came first is what people look for."""
        prefix = next((os.environ[name] for name in FILE_NAMES if os.environ.get(name)), "")
        if not prefix or self._has_written:
            return
        self._has_written = True
        with contextlib.suppress(OSError):
            self.write(prefix + os.environ.get("RANK", _global_rank()))


def _global_rank() -> str:
    return str(dist.get_rank()) if dist.is_initialized() else "0"


def _size() -> int:
    said = next((os.environ[name] for name in SIZES_NAMES if os.environ.get(name)), "")
    return int(said) if said.isdecimal() else DEFAULT_ENTRIES


recorder = FlightRecorder(_size())
