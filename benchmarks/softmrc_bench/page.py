"""Time from a pulled cable to its report on the dashboard: a lab, its mapper, the page, and a browser that shows it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from softmrc.errors import DeviceError, MrcError
from softmrc.lab import Lab, bpf
from softmrc.ops.mapper import Mapper
from softmrc.ops.mapper.lab_fabric import LabFabric, lab_settings
from softmrc_bench.browser import CHROMIUM, chromium_page, wait_until

VERDICT = "document.getElementById('verdict').textContent"
FABRIC = """
[fabric]
planes = 2
hosts = 8
hosts_per_leaf = 4
spines = 2
host_link_bps = "50M"
fabric_link_bps = "50M"
[switch]
ecn = true
trim = true
"""


@contextmanager
def a_site(watch: Any = None, page: bool = False, token: str = "") -> Iterator[int]:
    """An agent of this process; the port at which it answers on loopback."""
    import uvicorn

    from softmrc.ops.agent.collect import Collector
    from softmrc.ops.agent.guard import ListenAddress
    from softmrc.ops.agent.server import config_of
    from softmrc.ops.agent.web import Site

    collector = Collector()
    config = config_of(Site(collector, watch, page).app(ListenAddress("127.0.0.1", 0, token)))
    config.host, config.port = "127.0.0.1", 0
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        for _ in range(1000):
            if server.started:
                break
            time.sleep(0.01)
        else:
            raise DeviceError("the page is not served")
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)
        collector.close()


@contextmanager
def a_page(watch: Any) -> Iterator[Any]:
    """The page, open in a browser, and past its first words."""
    with a_site(watch, page=True) as port, chromium_page() as browser:
        browser.set_viewport_size({"width": 1200, "height": 900})
        browser.goto(f"http://127.0.0.1:{port}/")
        wait_until(browser, f"document.getElementById('verdict') && {VERDICT} != '…'", 30)
        yield browser


@contextmanager
def a_mapped_lab(lab: Lab) -> Iterator[Any]:
    """The mapper's findings in a lab, as the page gets them."""
    from softmrc.ops.agent.watch import FabricWatch, MapperSource

    with LabFabric(lab) as fabric:
        watch = FabricWatch(lab.name, lab.shape, MapperSource(Mapper(fabric, lab_settings(lab))))
        try:
            yield watch
        finally:
            watch.close()


def page_seconds(pulls: int = 5) -> dict[str, Any]:
    """The longest of so many; None where there is no root or no browser to try it with."""
    if os.geteuid() != 0 or bpf.missing() is not None or CHROMIUM is None:
        return {"page_seconds": None}
    cables = [f"p{i % 2}.leaf{i // 2 % 2}-spine{i // 4 % 2}" for i in range(pulls)]
    took = []
    try:
        with (
            Lab.up(FABRIC, f"page{os.getpid()}") as lab,
            a_mapped_lab(lab) as watch,
            a_page(watch) as browser,
        ):
            for cable in cables:
                wait_until(browser, f"{VERDICT} == 'all is well'", 60)
                lab.fail(cable, "down")
                took.append(wait_until(browser, f"{VERDICT}.includes('{cable} is dead')", 30))
                lab.heal()
    except (ImportError, MrcError) as error:
        return {"page_seconds": None, "page_not_measured": str(error)}
    return {"page_seconds": max(took), "page_seconds_each": took}
