"""A fabric of network namespaces on one machine: the kernel's own SRv6, links with a rate, ECN, trimming, and failures.

>>> from softmrc.lab import Lab                                      # doctest: +SKIP
>>> with Lab.up(load("examples/lab.toml").read()) as lab:            # doctest: +SKIP
...     lab.fail("p0.leaf0-spine1", "blackhole")
"""

from __future__ import annotations

from softmrc.lab.lab import Lab, PortState

__all__ = ["Lab", "PortState"]
