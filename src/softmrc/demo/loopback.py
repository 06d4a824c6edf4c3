"""The planes where nothing better is to be had: addresses of loopback, and MRC itself drops what a fault would.

Gloo has no such faults, so there TCP trains undisturbed only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from softmrc.demo.ranks import DemoRanks, RankPlace
from softmrc.demo.script import STEPS, ScriptedFault

PLANES = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
INJECTED = {"silent": {"black_hole": True}, "loss": {"drop": 0.01}, "slow": {"delay_us": 20_000.0}}


class Loopback:
    planes = len(PLANES)
    steps = STEPS
    breaks_tcp = False
    text = f"{len(PLANES)} planes on loopback; SoftMRC injects the faults"
    tcp_text = "TCP runs over loopback without faults: only SoftMRC can inject faults there."
    faults = (
        ScriptedFault("plane 2 silent", "silent", (2,)),
        ScriptedFault("plane 1 down at rank 1", "down", (1,), rank=1),
        ScriptedFault("plane 3 flapping at rank 3", "flap", (3,), rank=3),
        ScriptedFault("1 % loss on every plane", "loss", tuple(range(len(PLANES)))),
        ScriptedFault("plane 0 slow, +20 ms", "slow", (0,)),
    )

    def __init__(self, ranks: int) -> None:
        self._size = ranks

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def places(self) -> list[RankPlace]:
        return [RankPlace({"SOFTMRC_PLANES": ",".join(PLANES), "GLOO_SOCKET_IFNAME": "lo"})] * self._size

    def break_it(self, ranks: DemoRanks, fault: ScriptedFault, is_broken: bool) -> None:
        for plane in fault.planes:
            if fault.kind in INJECTED:
                injected = INJECTED[fault.kind] if is_broken else {}
                ranks.order(fault.rank, {"do": "faults", "plane": plane, "faults": injected})
            else:
                ranks.order(fault.rank, {"do": "port", "plane": plane, "up": not is_broken})

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """No switch, no counters."""
        yield None
