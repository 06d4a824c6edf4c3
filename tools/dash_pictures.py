"""Takes the pictures of docs/guides/monitoring.md: python tools/dash_pictures.py [FOLDER]   (root, and Chromium)

A lab, a job between two of its hosts, the page of one of them, and a cable that is pulled. Without a folder the two
that the page shows are written; with one, those and the same in the dark, to be looked at.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from softmrc.connection import connect, listen
from softmrc.device import Device
from softmrc.fabric.host import FabricHost
from softmrc.lab import Lab
from softmrc_bench.browser import wait_until
from softmrc_bench.page import FABRIC, VERDICT, a_mapped_lab, a_page

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
FAR, SECRET, SIZE = 7, "of these pictures", 1 << 18
CABLE = "p1.leaf0-spine0"
CALM_S, BROKEN_S = 20, 8


def at(lab: Lab, host: int, folder: Path) -> Device:
    """A device of that host, whose control socket is in a separate folder."""
    folder.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    here = FabricHost(lab.description, host, trims=lab.record.acts)
    with lab.inside(f"host{host}"):
        return Device(here.planes, routes=here.paths, **here.settings())


class Job:
    """Host 0 writes to host 7 until it is over."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab = lab
        self._address = str(lab.plan.host_address(FAR))
        self._far, self._near = at(lab, FAR, folder / "far"), at(lab, 0, folder / "near")
        self._is_over = threading.Event()
        self._is_heard = threading.Event()
        self._has_ended = threading.Event()
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._listen, self._write)]

    def _listen(self) -> None:
        with (
            self._lab.inside(f"host{FAR}"),
            listen(self._address, 7000, memory=bytearray(SIZE), secret=SECRET, device=self._far) as door,
        ):
            self._is_heard.set()
            with door.accept():
                self._has_ended.wait()

    def _write(self) -> None:
        self._is_heard.wait()
        with (
            self._lab.inside("host0"),
            connect(self._address, 7000, secret=SECRET, device=self._near) as connection,
        ):
            while not self._is_over.is_set():
                connection.write(connection.remote[0], 0, bytes(SIZE))
            self._has_ended.set()

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(10)
        self._near.close()
        self._far.close()


def main(folder: Path | None) -> None:
    pictures = folder or PICTURES
    with (
        Lab.up(FABRIC, "lab") as lab,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
        Job(lab, Path(name)),
        a_mapped_lab(lab) as watch,
        a_page(watch) as browser,
    ):
        time.sleep(CALM_S)
        lab.fail(CABLE, "down")
        wait_until(browser, f"{VERDICT}.includes('{CABLE} is dead')", 30)
        time.sleep(BROKEN_S)
        for title, width, height in (("dash", 1280, 1060), ("dash-telephone", 400, 1300)):
            for scheme in ("light", "dark") if folder else ("light",):
                browser.set_viewport_size({"width": width, "height": height})
                browser.emulate_media(color_scheme=scheme)
                time.sleep(1)
                browser.screenshot(path=pictures / f"{title}{'-dark' if scheme == 'dark' else ''}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
