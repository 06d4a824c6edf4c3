"""Pages in a real browser, at three widths, light and dark: they fit, can be read, show figures and give them away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sim.small import table

import needs
from softmrc import sim
from softmrc.fabric import Description, Shape
from softmrc.planner import assess as judge
from softmrc.planner.plan import DesignSpec, Prices, compare
from softmrc.planner.report import assess_html, plan_html
from softmrc.sim import report
from softmrc_bench.browser import chromium_page, wait_until

pytestmark = needs.tools("chromium")
FAULT = {"kind": "down", "link": {"plane": 0, "leaf": 1, "spine": 2}, "at_us": 5.0, "for_us": 5.0, "label": "a cable"}
LEAST_TEXT_PX = 8.0


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    question, prices = DesignSpec(131072, 800 * 10**9, 51200 * 10**9), Prices.load()
    fabric = Description(fabric=Shape(planes=4, hosts=64, hosts_per_leaf=8, spines=8))
    texts = {
        "plan": plan_html(question, compare(question, prices), prices),
        "assess": assess_html(judge.assess(fabric, trials=1)),
        "sim": report.page(sim.run_all(sim.parse(table(faults={"events": [FAULT]})))),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium_page() as page:
        yield page


@pytest.mark.parametrize("name", ["plan", "assess", "sim"])
def test_a_page_fits_and_can_be_read(pages: dict[str, Path], browser: Any, name: str) -> None:
    browser.goto(pages[name].as_uri())
    wait_until(browser, "document.querySelector('button.save') !== null")
    for width in (1280, 800, 400):
        browser.set_viewport_size({"width": width, "height": 900})
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        smallest = browser.evaluate(
            "Math.min(...[...document.querySelectorAll('svg.plot')].map(s => 12 * s.getBoundingClientRect().width "
            "/ s.viewBox.baseVal.width))"
        )
        assert smallest >= LEAST_TEXT_PX, f"letters of {smallest:.1f} pixels at {width}"
    grounds = []
    for scheme in ("light", "dark"):
        browser.emulate_media(color_scheme=scheme)
        grounds.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] == "rgb(255, 255, 255)" and grounds[1] != grounds[0]


def test_a_plot_shows_its_figures_and_gives_them_away(pages: dict[str, Path], browser: Any) -> None:
    browser.set_viewport_size({"width": 1280, "height": 900})
    browser.goto(pages["sim"].as_uri())
    wait_until(browser, "document.querySelector('button.save') !== null")
    browser.evaluate(
        "(() => { const s = document.querySelector('svg[data-plot]'), r = s.getBoundingClientRect();"
        "s.dispatchEvent(new MouseEvent('mousemove', {clientX: r.left + r.width / 2, clientY: r.top + 50})) })()"
    )
    assert browser.evaluate("document.getElementById('tip').innerText").startswith(tuple("0123456789"))
    text = browser.evaluate("csv(JSON.parse(document.querySelector('svg[data-plot]').dataset.plot))")
    head, *rows = text.splitlines()
    assert head == "series,x,y" and len(rows) > 3 and all(row.startswith('"MRC",') for row in rows)
