"""A page in a headless Chromium of the system, driven by playwright."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from softmrc.errors import DeviceError, InternalError, UsageError

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class TimedOut(DeviceError):
    """The page does not show it in time."""


@contextmanager
def chromium_page() -> Iterator[Page]:
    """A page, without anything open. Errors of its scripts, and what it asked for in vain, are raised at the end."""
    from playwright.sync_api import Error, sync_playwright

    if CHROMIUM is None:
        raise UsageError("chromium is not installed")
    errors: list[str] = []
    options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    try:
        with sync_playwright() as driver, driver.chromium.launch(executable_path=CHROMIUM, args=options) as browser:
            page = browser.new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
            yield page
    except Error as error:
        raise DeviceError(f"Chromium: {error.message}") from error
    if errors:
        raise InternalError(f"the page has errors: {errors}")


def wait_until(page: Page, script: str, timeout_s: float = 10.0) -> float:
    """Until it is true; how long that took."""
    start = time.monotonic()
    while time.monotonic() - start < timeout_s:
        if page.evaluate(script):
            return time.monotonic() - start
        page.wait_for_timeout(30)
    raise TimedOut(f"{script} is not so within {timeout_s:g} s; the page says {page.inner_text('body')}")
