"""A device as a group sees it: two streams, one for copies off it and one for copies onto it, and pinned memory that
they go through.

That memory is a few cells, which are used again and again, however much travels. A cell belongs to one chunk of a
collective until what came has been copied onto the device. A chunk that finds none free waits for the chunk that began
first. So cells belong to one group, whose collectives begin in the same order everywhere: the chunk that is
waited for needs nothing that waits for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from softmrc.errors import ConfigError

CELL_BYTES = 4 << 20
CELLS = 8


class PinnedSlot:
    """Pinned memory for one chunk."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.tenant: Any = None  # the chunk that has it
        self._copied: Any = None  # the event that ends the last copy from or to it

    def vacate(self, copied: Any) -> None:
        self.tenant, self._copied = None, copied

    @property
    def is_free(self) -> bool:
        return self.tenant is None and (self._copied is None or self._copied.query())

    def clear(self) -> None:
        """Wait until it is free."""
        if tenant := self.tenant:
            tenant.settle()
        if self._copied is not None:
            self._copied.synchronize()


class Streams:
    """One device, for one group. `api` is `torch.cuda`, or anything with its `Stream`, `Event`, `stream` and
    `current_stream`."""

    def __init__(self, device: torch.device, api: Any = None) -> None:
        self.device = device
        if api is None and not hasattr(getattr(torch, device.type, None), "Stream"):
            raise ConfigError("tensor", f"on {device.type}", "must have its memory on cpu or on a GPU")
        self._api = api or getattr(torch, device.type)
        self.off = self._api.Stream(device=device)
        self.onto = self._api.Stream(device=device)
        self._cells: list[PinnedSlot] = []  # those taken last come last

    # Copies.

    @contextlib.contextmanager
    def on(self, stream: Any, after: Sequence[Any]) -> Iterator[None]:
        """What is copied in here goes on this stream, once the events have been."""
        with self._api.stream(stream):
            for event in after:
                stream.wait_event(event)
            yield

    def event(self, stream: Any, sleeps: bool = False) -> Any:
        """Tells when what is on the stream now is complete. `sleeps`: to a host that does not spin for it."""
        event = self._api.Event(blocking=True) if sleeps and self.device.type == "cuda" else self._api.Event()
        event.record(stream)
        return event

    def now(self) -> Any:
        """Tells when what is on the caller's stream now is complete."""
        return self.event(self._api.current_stream(self.device))

    def wait_for(self, event: Any) -> None:
        """Nothing that is put on the current stream from here on starts before the event."""
        self._api.current_stream(self.device).wait_event(event)

    # Pinned memory.

    def memory(self, nbytes: int) -> torch.Tensor:
        """Of the caller's own, from torch's pool."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self.device.type != "cpu")

    def cell(self, tenant: Any, waits: bool) -> PinnedSlot | None:
        """For one thread at a time, the one that begins collectives. None: there is none yet, and it does not wait."""
        cell = next((one for one in self._cells if one.is_free), None)
        if cell is None and len(self._cells) < CELLS:
            cell = PinnedSlot(self.memory(CELL_BYTES))
            self._cells.append(cell)
        if cell is None and not waits:
            return None
        cell = cell or self._cells[0]
        cell.clear()
        self._cells.remove(cell)
        self._cells.append(cell)
        cell.tenant = tenant
        return cell
