"""The words in which `softmrc assess` counts: where a job's time goes, under which transport and which policy.

Two methods fill these in and share nothing else: closed_form.py and monte_carlo.py.

A job spans the fabric. What takes all of a host away stops it, whatever the transport: a GPU, the power, the last
plane. What takes less away MRC rides out; without MRC it stops the job if it lies below the leaves, and if it lies
above only holds it up until switches have rerouted. A job that has stopped has lost its work since the last
checkpoint, is found out, restarted and warmed up. Hosts that were lost are replaced by spares while there are any. What
happens with what is left broken, but works in part, is the policy; it is the same for both transports.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

TRANSPORTS = ("mrc", "roce")
TRANSPORT_WORDS = {"mrc": "MRC", "roce": "RoCE"}
POLICIES = {
    "swap": "swap the host for a spare",
    "repair": "run on while what broke is repaired",
    "degraded": "run degraded until the next maintenance",
}


@dataclass(frozen=True)
class Losses:
    """Shares of a job's time, all hosts together. What is left of 1 was useful."""

    degraded: float = 0.0  # going, at the pace of the slowest host
    stalled: float = 0.0  # standing still until a flap is over or switches have rerouted
    checkpoints: float = 0.0  # writing them
    rework: float = 0.0  # work that was lost with a stop, since the last checkpoint
    detection: float = 0.0
    restarts: float = 0.0  # restart and warm-up after a stop
    swaps: float = 0.0  # restart and warm-up to swap a host that still worked
    waiting: float = 0.0  # for a spare or a repair, without which the job cannot run
    stops_per_month: float = 0.0
    swaps_per_month: float = 0.0

    @property
    def lost(self) -> float:
        return sum(getattr(self, part) for part in PARTS)

    def beyond(self, less: Losses) -> float:
        """What this takes of the time that a smaller loss leaves. A difference of the two would shrink where much is
        lost anyway, though the same share of the work is gone."""
        return 1 - (1 - self.lost) / (1 - less.lost) if less.lost < 1 else 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"lost": self.lost}


PARTS = tuple(f.name for f in fields(Losses) if not f.name.endswith("_per_month"))
PART_WORDS = {
    "degraded": "slowest host's pace",
    "stalled": "flaps, rerouting",
    "checkpoints": "writing checkpoints",
    "rework": "work lost in stops",
    "detection": "detection",
    "restarts": "restart, warm-up",
    "swaps": "planned swaps",
    "waiting": "waiting for repairs",
}
