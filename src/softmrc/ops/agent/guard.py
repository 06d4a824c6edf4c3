"""Authentication and rate limits of an agent.

Authorised requests have a separate rate limit, which refused ones do not consume. It is shared fairly between the
users of one machine, or between addresses, and one share is left for a newcomer.

On loopback every user of this machine is authorised, except pages of another origin (DNS may resolve any name to
loopback, so the Host header is checked too). Elsewhere a token is required. Nothing here changes anything, and only
GET and HEAD are answered.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from softmrc.errors import ConfigError

MAX_A_SECOND = 200  # in all; half of it for one who is alone
FORGOTTEN_S = 2.0  # without a request for so long a client has no share
MAX_ORIGINS = 1024
MAX_REFUSED_A_SECOND = 20  # with a reason in the answer
LONGEST_PATH = 2048
ORIGIN = "origin"  # in the state of a request: by whom it is counted
Scope = dict[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]
PORT = re.compile("[0-9]{1,5}")


@dataclass(frozen=True)
class ListenAddress:
    """Where an agent listens, and the token that others must have."""

    host: str
    port: int
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.is_loopback and len(self.token) < 16:
            hint = "Set SOFTMRC_TOKEN or --token-file to a token of at least 16 characters."
            raise ConfigError("listen", self.host, "must be a loopback address without a token", hint)

    @property
    def is_loopback(self) -> bool:
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @classmethod
    def parse(cls, text: str, token: str = "") -> ListenAddress:
        host, _, port = text.rpartition(":")
        if not host or not PORT.fullmatch(port) or int(port) > 65535:
            raise ConfigError("listen", text, "must be ADDRESS:PORT, as 127.0.0.1:9464")
        return cls(host.strip("[]"), int(port), token)


class TokenBucket:
    """A rate limit, with bursts of one second's worth."""

    def __init__(self, a_second: float) -> None:
        self._a_second, self._left, self._at = a_second, float(a_second), time.monotonic()

    def change(self, a_second: float) -> None:
        self._a_second = a_second

    def take(self) -> bool:
        now = time.monotonic()
        self._left = min(self._a_second, self._left + (now - self._at) * self._a_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class FairTokenBucket:
    """A rate limit shared equally between recent clients, with one share left for a newcomer."""

    def __init__(self, a_second: int) -> None:
        self._a_second, self._all = a_second, TokenBucket(a_second)
        self._each: dict[str, tuple[TokenBucket, float]] = {}  # with when it asked last, oldest first

    def take(self, origin: str) -> bool:
        now = time.monotonic()
        while self._each and now - next(iter(self._each.values()))[1] > FORGOTTEN_S:
            del self._each[next(iter(self._each))]
        if origin not in self._each and len(self._each) >= MAX_ORIGINS:
            return False
        # At least one, or with more users than requests a second none would be answered.
        share = max(1.0, self._a_second / (len(self._each) + (origin not in self._each) + 1))
        own, _ = self._each.pop(origin, (TokenBucket(share), now))
        self._each[origin] = own, now
        own.change(share)
        return own.take() and self._all.take()


class Guard:
    """ASGI middleware that passes on authorised requests only."""

    def __init__(self, app: App, listen: ListenAddress) -> None:
        self._app, self._listen = app, listen
        self._answers, self._refusals = FairTokenBucket(MAX_A_SECOND), TokenBucket(MAX_REFUSED_A_SECOND)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        origin = scope.get("state", {}).get(ORIGIN, "")
        if refusal is None and not self._answers.take(origin):
            refusal = 429, f"more than a share of {MAX_A_SECOND} requests a second"
        elif refusal is not None and not self._refusals.take():
            refusal = 429, f"more than {MAX_REFUSED_A_SECOND} requests a second that are refused"
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, words = refusal
        head = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
        if status == 401:
            head.append((b"www-authenticate", b'Basic realm="softmrc"'))
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": (words + "\n").encode()})

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "nothing can be changed here"
        if len(scope.get("path", "")) + len(scope.get("query_string", b"")) > LONGEST_PATH:
            return 414, f"more than {LONGEST_PATH} characters"
        if self._listen.token and not self._has_token(headers):
            return 401, "a token is needed: Authorization: Bearer …"
        host = headers.get("host", "")
        if not self._listen.token and not self._is_ours(host):
            return 403, "this is not the requested host"
        origin = headers.get("origin")
        if origin is not None and not _is_of(origin, host):
            return 403, "a page of another origin may not ask"
        return None

    def _has_token(self, headers: dict[str, str]) -> bool:
        """As a bearer's, or as the password that a browser asks for."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        secret = given.strip(" \t").encode("latin-1")  # the bytes that came: UTF-8, as of the token
        if scheme.lower() == "basic":
            try:
                secret = base64.b64decode(secret, validate=True).partition(b":")[2]
            except ValueError:
                secret = b""
        matches = hmac.compare_digest(secret, self._listen.token.encode(errors="surrogateescape"))
        return scheme.lower() in ("bearer", "basic") and matches

    def _is_ours(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            name, _ = parts.hostname or "", parts.port
        except ValueError:
            return False
        if name in ("localhost", self._listen.host):
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False


def _is_of(origin: str, host: str) -> bool:
    """Whether a page of this origin is the host's own."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
