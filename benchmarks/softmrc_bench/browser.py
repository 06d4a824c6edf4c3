"""A headless Chromium, told what to do over a pipe: the few commands of its protocol that are needed here."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from softmrc.errors import DeviceError, UsageError

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class TimedOut(DeviceError):
    """The page does not show it in time."""


class Browser:
    """One page."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._number, self._rest = 0, b""
        self.errors: list[str] = []
        target = self._tell("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.tell(f"{domain}.enable")

    def tell(self, method: str, **params: Any) -> dict[str, Any]:
        return self._tell(method, self._session, **params)

    def _tell(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise UsageError(f"the browser refuses {method}: {answer['error']}")
                found: dict[str, Any] = answer["result"]
                return found
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(str(answer["params"]["exceptionDetails"])[:500])
            if answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["level"] == "error":
                self.errors.append(str(answer["params"]["entry"])[:500])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._back, 1 << 16)
            if not more:
                raise DeviceError("the browser is gone")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def open(self, url: str) -> None:
        self.tell("Page.navigate", url=url)

    def ask(self, script: str) -> Any:
        """What a piece of JavaScript says."""
        found = self.tell("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise UsageError(f"{script} fails on the page: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, script: str, patience_s: float = 10.0) -> float:
        """Until it says something true; how long that took."""
        start = time.monotonic()
        while time.monotonic() - start < patience_s:
            if self.ask(script):
                return time.monotonic() - start
            time.sleep(0.03)
        said = self.ask("document.body.innerText")
        raise TimedOut(f"{script} is not so within {patience_s:g} s; the page says {said}")

    def press(self, key: str, shift: bool = False) -> None:
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.tell(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text,
                modifiers=8 if shift else 0,
            )  # fmt: skip

    def size(self, width: int, height: int) -> None:
        self.tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def prefer(self, scheme: str) -> None:
        self.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path) -> None:
        whole = self.tell("Page.captureScreenshot", format="png", captureBeyondViewport=False)
        path.write_bytes(base64.b64decode(whole["data"]))


@contextmanager
def a_browser(profile: Path) -> Iterator[Browser]:
    if CHROMIUM is None:
        raise UsageError("chromium is not installed")
    in_, to = os.pipe()
    back, out = os.pipe()
    # Chromium reads commands from its descriptor 3 and answers on 4.
    script = f"exec 3<&{in_} 4>&{out}; exec {CHROMIUM} --headless --no-sandbox --disable-gpu --no-first-run " + (
        f"--remote-debugging-pipe --user-data-dir={profile} --disable-dev-shm-usage about:blank"
    )
    process = subprocess.Popen(
        ["bash", "-c", script], pass_fds=(in_, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(in_)
    os.close(out)
    try:
        yield Browser(to, back)
    finally:
        with contextlib.suppress(OSError):
            os.close(to)
        os.close(back)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
