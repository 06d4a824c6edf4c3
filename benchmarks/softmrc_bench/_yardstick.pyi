"""What SoftMRC is measured with."""

from collections.abc import Sequence


def watch_allocations(path: str) -> int:
    """
    Count what the library at this path allocates from now on; returns how many of its references were replaced.
    """

def allocations() -> tuple:
    """
    How often the watched libraries have allocated so far, and how many bytes they hold more than when it began.
    """

def send(fd: int, message_bytes: int, seconds: float) -> int: ...

def receive(fd: int, message_bytes: int, seconds: float) -> float: ...

def flood(fds: Sequence[int], payloads: Sequence[bytes], per_s: float, seconds: float) -> None: ...

class Series:
    """Payload bytes of one queue pair that were placed in each span of time."""

    def __init__(self, device: object, qpn: int, bin_us: float, bins: int) -> None: ...

    @property
    def bins(self) -> list[int]: ...

    @property
    def started_ns(self) -> int: ...
