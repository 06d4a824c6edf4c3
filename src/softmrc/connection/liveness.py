"""Whether a sealed peer has left whose TCP connection ended without a goodbye that it proved.

Whoever is on the wire can end a TCP connection, or say something on it. So that decides nothing: the peer is asked,
under the keys of the connection, and has left once it does not answer.
"""

from __future__ import annotations

import time

from softmrc.device import QueuePair

ASKS_EVERY_S = 0.25
ASKED_TO_NO_AVAIL = 5  # times, one after another; then it has left


class LivenessCheck:
    """Settled by whoever looks at it, as often as they do."""

    def __init__(self, qp: QueuePair) -> None:
        self._qp = qp
        self._asked_at: float | None = None
        self._in_vain = 0

    def is_confirmed(self) -> bool:
        now = time.monotonic()
        if self._in_vain >= ASKED_TO_NO_AVAIL:
            return True
        since_s = None if self._asked_at is None else now - self._asked_at
        if since_s is not None and since_s < ASKS_EVERY_S:
            return False
        unheard_s = self._qp.device._native.ask(self._qp.qpn)
        self._asked_at = now
        self._in_vain = self._in_vain + 1 if since_s is not None and unheard_s > since_s else 0
        return self._in_vain >= ASKED_TO_NO_AVAIL
