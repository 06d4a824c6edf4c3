"""How an operation on a device is cut, so that one chunk is copied while another travels.

Every rank must cut alike without asking, since each chunk is an operation of the transport by itself. So this depends
on how long parts are and how many there are, and on nothing else; and so does the order of a reduction, which follows
from the length of a chunk and the ranks as it does from an operation's.
"""

from __future__ import annotations

from collections.abc import Sequence

from softmrc.torch.staging import StagedTensor

LINE = 64  # bytes that no cut goes through; the largest elements have 16
LEAST_BYTES = 128 << 10  # of a part: below that a chunk costs more than it hides


def aligned(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE


def cuts(slots: Sequence[StagedTensor], cell: int) -> list[tuple[int, int]]:
    """From where to where in each part, in bytes, for each chunk. All parts of a chunk fit into a cell. One chunk:
    everything, whether or not it fits."""
    longest = max((slot.tensor.nbytes // slot.parts for slot in slots), default=0)
    room = cell // max(sum(slot.parts for slot in slots), 1) // LINE * LINE
    if longest <= room or room < LEAST_BYTES:
        return [(0, longest)]
    count = -(-longest // room)
    each = aligned(-(-longest // count))
    return [(at, min(at + each, longest)) for at in range(0, longest, each)]
