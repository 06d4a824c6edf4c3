"""Who may ask an agent: pages of other origins, other hosts, strangers, and those who ask too much may not."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from tests.agent.sites import a_site, get

from softmrc.agent.guard import MOST_A_SECOND, Guard, Listen
from softmrc.errors import ConfigError

TOKEN = "a-token-of-some-length"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_on_loopback_our_own_hosts_may_ask_and_no_other() -> None:
    with a_site() as port:
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", "[::1]:80"):
            assert get(port, "/healthz", Host=host)[0] == 200, host
        for host in ("evil.example", f"127.0.0.1.evil.example:{port}", "", "[", "a:b:c"):
            assert get(port, "/healthz", Host=host)[0] in (400, 403), host


def test_a_page_of_another_origin_may_not_ask() -> None:
    with a_site(page=True) as port:
        ours = {"Host": f"localhost:{port}"}
        assert get(port, "/", **ours, Origin=f"http://localhost:{port}")[0] == 200
        for origin in ("http://evil.example", "null", f"http://localhost:{port + 1}", ""):
            assert get(port, "/", **ours, Origin=origin)[0] == 403, origin


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_can_be_changed(method: str) -> None:
    with a_site(page=True) as port:
        assert get(port, "/api/state", method)[0] == 405


def test_with_a_token_only_who_has_it_may_ask() -> None:
    def basic(password: str) -> str:
        return "Basic " + base64.b64encode(f"x:{password}".encode()).decode()

    with a_site(token=TOKEN) as port:
        assert get(port, "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert get(port, "/metrics", Authorization=basic(TOKEN))[0] == 200
        for wrong in ("", "Bearer", "Bearer x", f"Bearer {TOKEN}x", TOKEN, basic("x"), "Basic !!", f"Digest {TOKEN}"):
            status, words = get(port, "/metrics", Authorization=wrong)
            assert status == 401 and TOKEN not in words, wrong


def test_off_loopback_there_is_no_agent_without_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(ConfigError, match="a token of at least 16"):
            Listen(host, 9464)
        with pytest.raises(ConfigError, match="a token of at least 16"):
            Listen(host, 9464, "short")
        assert Listen(host, 9464, TOKEN).token == TOKEN
    assert TOKEN not in repr(Listen("127.0.0.1", 1, TOKEN))
    for text in ("9464", "host", "127.0.0.1:x", ":1", "127.0.0.1:70000"):
        with pytest.raises(ConfigError, match="ADDRESS:PORT"):
            Listen.parse(text)
    assert Listen.parse("[::1]:80") == Listen("::1", 80)


def test_who_asks_at_too_great_length_is_refused() -> None:
    with a_site() as port:
        assert get(port, "/healthz?" + "x" * 3000)[0] == 414


def test_who_asks_too_much_is_refused() -> None:
    answers: list[int] = []

    async def app(_scope: object, _receive: object, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: dict[str, Any]) -> None:
        answers.extend([message["status"]] if "status" in message else [])

    async def ask_often() -> None:
        guard = Guard(app, Listen("127.0.0.1", 1))
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost:1")]}
        for _ in range(3 * MOST_A_SECOND):
            await guard(scope, None, send)

    asyncio.run(ask_often())
    assert answers[:MOST_A_SECOND] == [200] * MOST_A_SECOND and 429 in answers
