"""Which planes a rank uses: what `softmrc.environment` says, or found by where the ranks are.

A host of a fabric (`softmrc.fabric.host`) has that fabric's planes and SRv6 paths. Where nothing is said, ranks that
share a host use four planes on loopback; others the links that `softmrc.links` finds.
"""

from __future__ import annotations

from collections.abc import Sequence

from softmrc import links
from softmrc.environment import Settings, read

__all__ = ["LOOPBACK", "Settings", "chosen", "read"]

LOOPBACK = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")


def chosen(settings: Settings, hosts: Sequence[object]) -> links.Found:
    """The planes to use and why, by what was asked for and on which hosts the ranks are."""
    if settings.planes:
        return links.Found(settings.planes, settings.why)
    if len(set(hosts)) == 1:
        return links.Found(LOOPBACK, "all ranks are on this host")
    return links.found()
