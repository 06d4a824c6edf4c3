"""What each plane carries over time, by the byte counters of its switch: the same instrument for TCP and for MRC."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

SAMPLE_S = 0.004


@dataclass(frozen=True)
class Traffic:
    """Bytes that hosts gave to each plane and that each plane delivered, since the first sample."""

    at_s: np.ndarray  # [sample]
    given: np.ndarray  # [sample, plane]
    delivered: np.ndarray  # the same

    def since(self, moment: float) -> Traffic:
        """With that moment as zero."""
        return Traffic(self.at_s - moment, self.given, self.delivered)

    def rates_gbps(self, edges: np.ndarray, given: bool = False) -> np.ndarray:
        """The mean rate of each plane between moments: [plane, interval]."""
        counts = self.given if given else self.delivered
        at_edges = np.array([np.interp(edges, self.at_s, one) for one in counts.T])
        return np.asarray(np.diff(at_edges) * 8 / np.diff(edges) / 1e9)

    def last_given_s(self, planes: Sequence[int], start: float, end: float, packet_bytes: int) -> float | None:
        """When, between two moments, hosts last gave some planes more than so many bytes between two samples."""
        counts = self.given[:, list(planes)].sum(axis=1)
        found = None
        for (a, before), (b, after) in pairwise(zip(self.at_s, counts, strict=True)):
            if start < b <= end and a < end and after - before >= packet_bytes:
                found = float(b)
        return found


class Sampler:
    """A thread that reads open `/proc/net/dev` files, one for each plane's switch."""

    def __init__(self, files: Sequence[int]) -> None:
        self._files = files
        self._samples: list[tuple[float, list[tuple[int, int]]]] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(SAMPLE_S):
            self._samples.append((time.monotonic(), [_ports(os.pread(file, 1 << 16, 0)) for file in self._files]))

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()

    def result(self) -> Traffic:
        self.stop()
        at = np.array([at for at, _ in self._samples])
        counts = np.array([planes for _, planes in self._samples], dtype=float).reshape(len(at), -1, 2)
        counts -= counts[:1]
        return Traffic(at, counts[:, :, 0], counts[:, :, 1])


def _ports(text: bytes) -> tuple[int, int]:
    """Bytes received and sent by all ports of a switch that lead to ranks."""
    given = delivered = 0
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(b":")
        if name.strip().startswith(b"rank"):
            fields = numbers.split(None, 9)
            given, delivered = given + int(fields[0]), delivered + int(fields[8])
    return given, delivered
