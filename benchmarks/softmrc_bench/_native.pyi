"""Counts of a library's allocations, plain UDP, and floods. Written by hand; a test compares it with the module."""

from collections.abc import Sequence

def watch_allocations(path: str) -> int:
    """Count what the library at this path allocates from now on; returns how many of its references were replaced."""

def allocations() -> tuple[int, int]:
    """How often the watched libraries have allocated so far, and how many bytes they hold more than when it began."""

def send(fd: int, message_bytes: int, seconds: float) -> int:
    """Send messages without a pause for so long; returns the bytes that the kernel took."""

def receive(fd: int, message_bytes: int, seconds: float) -> float:
    """Receive until nothing has come for 100 ms, or for so long; returns bytes per second."""

def flood(fds: Sequence[int], payloads: Sequence[bytes], per_s: float, seconds: float) -> None:
    """Send these payloads in turn, at a steady rate over all descriptors, for so long."""
