"""The page in a real browser: what is pulled shows at once, by keyboard, in the dark, and on a telephone."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.control.pretended import Pretended, a_device
from tests.lab.labs import a_lab, wait_for_quiet

import needs
from softmrc.device import Device
from softmrc.fabric import Shape
from softmrc.fabric.host import FabricHost
from softmrc.ops.agent.watch import FabricWatch
from softmrc_bench.browser import wait_until
from softmrc_bench.page import FABRIC, VERDICT, a_mapped_lab, a_page

pytestmark = needs.tools("chromium")
SHAPE = Shape(planes=2, hosts=8, hosts_per_leaf=4, spines=2)
PICTURES = os.environ.get("SOFTMRC_PICTURES")  # a folder for what the page looks like


class Told:
    """Broken is what the test says."""

    def __init__(self) -> None:
        self.now: list[tuple[str, str, str, str]] = []
        self._turn = threading.Event()

    def broken(self) -> list[tuple[str, str, str, str]]:
        self._turn.wait(0.05)
        return list(self.now)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretended]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    pretended = Pretended()
    pretended.states = ["good"] * 4
    with a_device(tmp_path / "softmrc", pretended):
        yield pretended


def keep(browser: Any, name: str) -> None:
    if PICTURES:
        browser.screenshot(path=Path(PICTURES) / f"{name}.png")


@pytest.mark.slow
def test_what_happens_to_devices_and_to_the_fabric_is_shown(tmp_path: Path, device: Pretended) -> None:
    told = Told()
    watch = FabricWatch("small", SHAPE, told)
    try:
        with a_page(watch) as browser:
            assert browser.evaluate(VERDICT) == "all is well"
            assert browser.evaluate("document.querySelectorAll('.plane').length") == 2
            assert browser.evaluate("document.querySelectorAll('#path-rows tr').length") == 1
            told.now = [("p0.leaf0-spine1", "link", "dead", "dead")]
            wait_until(browser, f"{VERDICT}.includes('p0.leaf0-spine1 is dead')")
            wait_until(browser, "document.getElementById('events').innerText.includes('p0.leaf0-spine1 is dead')")
            wait_until(browser, "fetch('fabric.svg').then(r => r.text()).then(t => t.includes('#dc2626'))")
            keep(browser, "broken")
            device.states[1], device.up[1] = "assumed_bad", False
            device.tell("ev_state", text="plane 1 fell silent")
            wait_until(
                browser, f"{VERDICT}.includes('1 plane down') && {VERDICT}.includes('1 peer with paths in trouble')"
            )
            wait_until(
                browser,
                "document.querySelector('#path-rows tr').getAttribute('aria-label').includes('1 paths assumed bad')",
            )
            wait_until(browser, "document.getElementById('events').innerText.includes('plane 1 fell silent')")
            told.now, device.states[1], device.up[1] = [], "good", True
            wait_until(browser, f"{VERDICT} == 'all is well'")
            assert browser.evaluate("document.getElementById('events').innerText.includes('no longer dead')")
    finally:
        watch.close()


@pytest.mark.slow
def test_everything_is_reached_by_keyboard_and_fits_a_telephone_and_the_dark(tmp_path: Path, device: Pretended) -> None:
    with a_page(None) as browser:
        reached = set()
        for _ in range(12):
            browser.keyboard.press("Tab")
            reached.add(
                browser.evaluate(
                    "(e => e.getAttribute('href') || e.id || e.getAttribute('aria-label') || e.tagName)"
                    "(document.activeElement)"
                )
            )
        assert {"#planes", "#paths", "#happened", "theme", "Paths by peer", "Faults and events"} <= reached
        colour = "getComputedStyle(document.body).backgroundColor"
        light = browser.evaluate(colour)
        browser.emulate_media(color_scheme="dark")
        wait_until(browser, f"{colour} != {light!r}")
        keep(browser, "dark")
        browser.evaluate("document.getElementById('theme').focus()")
        browser.keyboard.press("Enter")
        wait_until(browser, f"{colour} == {light!r}")
        browser.set_viewport_size({"width": 400, "height": 800})
        wait_until(browser, "innerWidth == 400")
        assert browser.evaluate("document.documentElement.scrollWidth <= 400"), "the page is wider than a telephone"
        keep(browser, "telephone")


@pytest.mark.slow
def test_512_peers_are_shown(tmp_path: Path, device: Pretended) -> None:
    (row,) = device.on_qps({})["qps"]
    device.on_qps = lambda _: {  # type: ignore[method-assign]
        "qps": [
            row | {"qpn": i, "peer": {"number": i, "planes": [f"10.0.{i >> 8}.{i & 255}:4791"]}, "smoothed_rtt_us": i}
            for i in range(600)
        ]
    }
    with a_page(None) as browser:
        wait_until(browser, "document.querySelectorAll('#path-rows tr').length == 512")
        assert browser.evaluate("document.querySelector('#path-rows tr').innerText.includes('599 µs')"), (
            "the slowest first"
        )
        keep(browser, "many")


@pytest.mark.slow
@needs.lab
@needs.BPF
def test_a_cable_that_is_pulled_in_a_lab_shows_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with a_lab(FABRIC) as lab:
        wait_for_quiet(lab)
        with a_mapped_lab(lab) as watch, a_page(watch) as browser:
            wait_until(browser, f"{VERDICT} == 'all is well'")
            lab.fail("p1.leaf0-spine0", "down")
            wait_until(browser, f"{VERDICT}.includes('p1.leaf0-spine0 is dead')", 20)
            keep(browser, "lab")
            lab.heal()
            wait_until(browser, f"{VERDICT} == 'all is well'", 30)


@pytest.mark.slow
@needs.lab
@needs.BPF
def test_a_devices_own_cable_that_is_pulled_shows_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real devices on two hosts of a lab; the plane whose cable goes is down on the page, and comes back."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    shape = "[fabric]\nplanes = 2\nhosts = 8\nhosts_per_leaf = 4\nspines = 2\n"
    with a_lab(shape + 'host_link_bps = "50M"\nfabric_link_bps = "50M"\n') as lab, ExitStack() as stack:
        for number in (0, 7):
            here = FabricHost(lab.description, number)
            with lab.inside(f"host{number}"):
                stack.enter_context(Device(here.planes, routes=here.paths, **here.settings()))
        with a_page(None) as browser:
            wait_until(browser, "document.querySelectorAll('.plane').length == 4")
            assert browser.evaluate(VERDICT) == "all is well"
            lab.fail("p1.host0-leaf0", "down")
            wait_until(browser, f"{VERDICT} == '1 plane down'", 20)
            wait_until(browser, "document.getElementById('events').innerText.includes('plane 1 is down')")
            lab.heal()
            wait_until(browser, f"{VERDICT} == 'all is well'", 20)
