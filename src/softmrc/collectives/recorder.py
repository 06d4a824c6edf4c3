"""What writes the recording of a rank: marks of its operations as they come, and a thread that samples the rest."""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from softmrc._support.files import runtime_folder
from softmrc._support.threads import fork_safe_lock
from softmrc.collectives.ring_file import INTERVAL_S, MAX_PLANES, UNFINISHED, Owner, PathEvent, RingFile
from softmrc.engine import EvState
from softmrc.errors import MrcError

if TYPE_CHECKING:
    from softmrc.collectives.group import Group
    from softmrc.device import QueuePair

ASKED_FOR = "SOFTMRC_RECORD"
MAX_CALLERS = 16
MAX_RECORDINGS = 64  # of processes that are gone
MAX_PAIRS = 64  # that a sample asks; of more, these many
_TASKS = Path("/proc/self/task")


def recorder_of(group: Group, name: str, run: str) -> RankRecorder | None:
    """One for this rank, if the environment asks for it; None also where there can be no file."""
    if os.environ.get(ASKED_FOR, "0") in ("", "0"):
        return None
    try:
        return RankRecorder(group, name, run)
    except (OSError, MrcError) as error:
        print(f"softmrc: no flight recorder: {error}", file=sys.stderr)
        return None


class RankRecorder:
    """The recorder of one rank. Everything here may be called from any thread."""

    def __init__(self, group: Group, name: str, run: str) -> None:
        self._group = group
        self._lock = fork_safe_lock()
        where = runtime_folder()
        where.mkdir(mode=0o700, exist_ok=True)
        about = where.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise OSError(f"{where} is no folder of this user's alone")
        _forget_old(where)
        planes = tuple(str(plane) for plane in group.device.local_planes)
        owner = Owner(name, group.rank, group.size, os.getpid(), " ".join(sys.argv), planes, run)
        self.file = self._claim(where, owner)
        self._met = 0
        self._known: list[tuple[int, QueuePair]] = []
        self._drops = np.zeros((group.size, MAX_PLANES), dtype=np.int64)
        self._good = np.ones((group.size, MAX_PLANES), dtype=bool)
        self._before: dict[str, int] = {}
        self._waits: dict[int, int] = {}  # of the threads that issue operations, by their number
        self._waited = 0.0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="softmrc-recorder", daemon=True)
        self._thread.start()

    @property
    def _pairs(self) -> list[tuple[int, QueuePair]]:
        """To all peers that the group has met by now."""
        met = self._group.stats()["peers_met"]
        if met != self._met:
            self._met, found = met, self._group.pairs
            known = [
                (p, pair) for p, channels in found.items() for both in channels for pair in (both.bulk, both.messages)
            ]
            self._known = known[:MAX_PAIRS]
        return self._known

    @staticmethod
    def _claim(where: Path, owner: Owner) -> RingFile:
        for number in range(4096):
            with suppress(FileExistsError):
                return RingFile(where / f"{owner.pid}-{number}.flight", owner)
        raise OSError("4096 recorders in one process")

    def begin(self, kind: int, nbytes: int) -> int:
        """An operation is issued, by this thread: its number, for `end`."""
        caller = threading.get_native_id()
        if caller not in self._waits and len(self._waits) < MAX_CALLERS:
            self._waits.setdefault(caller, _stood_in_line_ns(caller))
        with self._lock:
            return self.file.add("operations", kind, nbytes, time.time(), 0.0)

    def end(self, number: int) -> None:
        with self._lock:
            self.file.end_operation(number, time.time())

    def close(self) -> None:
        """Stop; the recording stays for later analysis."""
        self._ends.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(5)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ends.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + INTERVAL_S
            try:
                self._sample()
            except MrcError:
                return  # the device is closed

    def _sample(self) -> None:
        now = time.time()
        self._waited += self._waited_longest()
        sums = dict.fromkeys(("packets_retransmitted", "packets_duplicate", "timeouts", "ports_left_slow"), 0)
        for _, pair in self._pairs:
            stats = pair.stats()
            for key in sums:
                sums[key] += stats[key]
        received = np.zeros(MAX_PLANES, dtype=np.uint64)
        for plane, row in enumerate(self._group.device.planes()[:MAX_PLANES]):
            received[plane] = row["bytes_received"]
        if sums != self._before:
            self._note_paths(now, sums)
            self._before = sums
        self.file.add("samples", now, self._waited, *sums.values(), received)

    def _waited_longest(self) -> float:
        """Seconds since the last sample that a thread which issues operations waited for a processor."""
        worst = 0
        for caller, before in list(self._waits.items()):
            now = _stood_in_line_ns(caller)
            if now < before:
                self._waits.pop(caller, None)  # it has ended
                continue
            worst = max(worst, now - before)
            self._waits[caller] = now
        return worst / 1e9

    def _note_paths(self, now: float, sums: dict[str, int]) -> None:
        """Something was lost or came back since the last sample: where?"""
        drops, good = np.zeros_like(self._drops), np.ones_like(self._good)
        for peer, pair in self._pairs:
            evs = pair.evs()
            planes = evs["port"].astype(int)
            np.add.at(drops[peer], planes, evs["drops"].astype(np.int64))
            is_good = ~np.isin(evs["state"], (EvState.ASSUMED_BAD.value, EvState.DENIED.value))
            own = np.zeros(MAX_PLANES, dtype=bool)
            np.logical_or.at(own, planes, is_good)
            seen = np.isin(np.arange(MAX_PLANES), planes)
            good[peer] &= own | ~seen  # one queue pair that has nothing left there will do
        for peer, plane in np.argwhere(drops > self._drops).tolist():
            self.file.add(
                "notes", now, PathEvent.LOST, peer, plane, float(drops[peer, plane] - self._drops[peer, plane])
            )
        for peer, plane in np.argwhere(self._good & ~good).tolist():
            self.file.add("notes", now, PathEvent.SILENT, peer, plane, 0.0)
        for peer, plane in np.argwhere(good & ~self._good).tolist():
            self.file.add("notes", now, PathEvent.BACK, peer, plane, 0.0)
        self._drops, self._good = drops, good
        if sums["ports_left_slow"] > self._before.get("ports_left_slow", 0):
            for peer, pair in self._pairs:
                mask = int(pair.query()["data_ports"])
                for plane in range(len(self._group.device.local_planes)):
                    if not mask >> plane & 1:
                        self.file.add("notes", now, PathEvent.LEFT_SLOW, peer, plane, 0.0)


def _forget_old(where: Path) -> None:
    """Keep the newest recordings of processes that have ended; remove older and unfinished ones."""
    with suppress(OSError):
        recordings = sorted(where.glob("*.flight"), key=lambda path: path.stat().st_mtime)
        for path in [*recordings[:-MAX_RECORDINGS], *where.glob(f"*.flight{UNFINISHED}")]:
            if not Path("/proc", path.name.partition("-")[0]).exists():
                path.unlink()


def _stood_in_line_ns(thread: int) -> int:
    """How long a thread was runnable without a processor; 0 where the kernel does not say."""
    try:
        return int((_TASKS / str(thread) / "schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
