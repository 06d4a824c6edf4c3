"""Access to an agent: pages of other origins, other hosts, unknown users, and too many requests are refused."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from tests.agent.sites import a_site, get

from softmrc.errors import ConfigError
from softmrc.ops.agent import guard, origin, server, web
from softmrc.ops.agent.collect import Collector
from softmrc.ops.agent.guard import MAX_A_SECOND, ORIGIN, Guard, ListenAddress

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
        for origin in ("http://evil.example", "null", f"http://localhost:{port + 1}", "", "http://["):
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
            ListenAddress(host, 9464)
        with pytest.raises(ConfigError, match="a token of at least 16"):
            ListenAddress(host, 9464, "short")
        assert ListenAddress(host, 9464, TOKEN).token == TOKEN
    assert TOKEN not in repr(ListenAddress("127.0.0.1", 1, TOKEN))
    for text in ("9464", "host", "x:y", ":1", "127.0.0.1:70000", "127.0.0.1:²", "127.0.0.1:１", f"x:{'1' * 5000}"):
        with pytest.raises(ConfigError, match="ADDRESS:PORT"):
            ListenAddress.parse(text)
    assert ListenAddress.parse("[::1]:80") == ListenAddress("::1", 80)


def test_who_asks_at_too_great_length_is_refused() -> None:
    with a_site() as port:
        assert get(port, "/healthz?" + "x" * 3000)[0] == 414


def asked(listen: ListenAddress, requests: Sequence[dict[str, str]], origins: Sequence[str] = ()) -> list[int]:
    """How a guard answers these requests, asked at once: each is its headers, and has an origin if there are any."""
    answers: list[int] = []

    async def app(_scope: object, _receive: object, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: dict[str, Any]) -> None:
        answers.extend([message["status"]] if "status" in message else [])

    async def ask() -> None:
        guarded = Guard(app, listen)
        for request, whose in zip(requests, origins or [""] * len(requests), strict=True):
            headers = [(name.encode(), value.encode()) for name, value in request.items()]
            about = {"type": "http", "method": "GET", "path": "/", "headers": headers}
            await guarded({**about, "state": {ORIGIN: whose}}, None, send)

    asyncio.run(ask())
    return answers


HALF = MAX_A_SECOND // 2


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The guard's clock, which stands still until it is moved."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(guard, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_who_asks_too_much_is_refused(frozen: Any) -> None:
    answers = asked(ListenAddress("127.0.0.1", 1), [{"host": "localhost:1"}] * MAX_A_SECOND)
    assert answers == [200] * HALF + [429] * HALF


def test_one_user_who_asks_without_end_leaves_the_others_their_share(frozen: Any) -> None:
    origins = [*["user 1"] * 5 * MAX_A_SECOND, *["user 2"] * 20, *["user 3"] * 20]
    answers = asked(ListenAddress("127.0.0.1", 1), [{"host": "localhost:1"}] * len(origins), origins)
    assert answers.count(200) == HALF + 40 and answers[-40:] == [200] * 40


def test_however_many_ask_there_is_a_bound_for_all(frozen: Any) -> None:
    shares = guard.FairTokenBucket(MAX_A_SECOND)
    assert sum(shares.take(f"user {number % 300}") for number in range(3000)) <= MAX_A_SECOND
    for _ in range(20):
        frozen.now += 0.1
        assert sum(shares.take(f"user {number % 5}") for number in range(300)) <= MAX_A_SECOND // 10 + 1
    frozen.now += 2 * guard.FORGOTTEN_S
    assert sum(shares.take("user 7") for _ in range(MAX_A_SECOND)) == HALF and len(shares._each) == 1


def test_with_more_users_than_requests_a_second_each_is_answered_in_turn(frozen: Any) -> None:
    shares = guard.FairTokenBucket(MAX_A_SECOND)
    users = [f"user {number}" for number in range(5 * MAX_A_SECOND)]
    assert sum(map(shares.take, users)) <= MAX_A_SECOND
    for _ in range(4):  # each second others are answered, as no user has more than one
        frozen.now += 1
        served = [user for user in reversed(users) if shares.take(user)]
        assert len(served) == MAX_A_SECOND
        users = [user for user in users if user not in served]


def test_on_one_machine_a_user_is_counted_and_not_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as one:
        ends = one.getsockname(), door.getsockname()
        user = origin.user_of(*ends)
        if user is None:
            assert origin.origin_of(*ends) == "this machine"
            pytest.skip("the kernel does not say whose a socket is (sock_diag)")
        assert user == os.geteuid() and origin.origin_of(*ends) == f"user {user}"
        with socket.create_connection(door.getsockname(), source_address=("127.0.0.9", 0)) as two:
            assert origin.origin_of(two.getsockname(), door.getsockname()) == f"user {user}"
    assert origin.origin_of(("10.0.0.7", 5), ("10.0.0.1", 1)) == "10.0.0.7"
    assert origin.origin_of(("fd00::1:2", 5), ("fd00::1", 1)) == "fd00::/64"


def test_a_socket_that_its_process_has_closed_is_nobodys() -> None:
    """The kernel shows it as user 0's."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        client = socket.create_connection(door.getsockname())
        served, ends = door.accept()[0], (client.getsockname(), door.getsockname())
        with client, served:
            if origin.user_of(*ends) is None:
                pytest.skip("the kernel does not say whose a socket is (sock_diag)")
            client.close()  # it waits for the other end to close as well
            assert served.recv(1) == b""
            assert origin.user_of(*ends) is None and origin.origin_of(*ends) == "this machine"
            served.close()  # and now only for the time to pass
            assert origin.user_of(*ends) is None


@pytest.mark.parametrize("token", ["", TOKEN])
def test_requests_are_counted_by_who_asks(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    monkeypatch.setattr(guard.FairTokenBucket, "take", lambda self, origin: bool(counted.append(origin) or True))
    with a_site(token=token) as port:
        assert get(port, "/healthz", Authorization=f"Bearer {token}")[0] == 200
    assert counted in ([f"user {os.geteuid()}"], ["this machine"])


def test_who_may_not_ask_takes_nothing_from_those_who_may() -> None:
    stranger, friend = {"host": "x"}, {"host": "x", "authorization": f"Bearer {TOKEN}"}
    flood = asked(ListenAddress("0.0.0.0", 1, TOKEN), [*[stranger] * 10 * MAX_A_SECOND, friend])
    assert flood[0] == 401 and 429 in flood and flood[-1] == 200


def test_a_token_may_have_any_letters() -> None:
    token = "ein-Schlüssel-aus-Köln-à"
    with a_site(token=token) as port:
        assert get(port, "/metrics", Authorization=f"Bearer {token}".encode().decode("latin-1"))[0] == 200
        password = base64.b64encode(f"x:{token}".encode()).decode()
        assert get(port, "/metrics", Authorization=f"Basic {password}")[0] == 200
        assert get(port, "/metrics", Authorization=f"Bearer {token[:-1]}".encode().decode("latin-1"))[0] == 401
    friend = {"host": "x", "authorization": "Bearer x"}
    assert asked(ListenAddress("127.0.0.1", 1, "not-\udcff-quite-text"), [friend]) == [401]


@contextmanager
def silent_ones(port: int, count: int, said: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections that ask nothing, or not to the end."""
    with ExitStack() as stack:
        made = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 20)) for _ in range(count)]
        for one in made:
            one.sendall(said)
        yield made


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_who_connects_and_asks_nothing_is_sent_away(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.2)
    with a_site() as port, silent_ones(port, 3, said) as silent:
        assert [one.recv(1) for one in silent] == [b""] * 3
        assert get(port, "/healthz")[0] == 200


def test_who_asked_once_and_then_only_begins_to_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.2)
    with a_site() as port, silent_ones(port, 1, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nG") as (one,):
        heard = b""
        while more := one.recv(4096):
            heard += more
        assert heard.startswith(b"HTTP/1.1 200")


def test_however_many_ask_nothing_those_who_ask_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_S", 60)
    with a_site() as port, silent_ones(port, 2 * server.MAX_AT_ONCE):
        assert [get(port, "/healthz")[0] for _ in range(5)] == [200] * 5


def test_who_does_not_take_an_answer_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TAKEN_S", 0.2)
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with a_site() as port, silent_ones(port, 1) as (one,), pytest.raises(ConnectionError):
        for _ in range(1_000_000):  # each is answered, until nothing more fits into the way
            one.sendall(request * 100)


def test_a_page_that_looks_on_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.1)
    request = b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with a_site(page=True) as port, silent_ones(port, 1, request) as (one,):
        heard = b""
        while heard.count(b"data: ") < 3:  # half a second apart
            more = one.recv(1 << 16)
            assert more
            heard += more


def test_no_more_pages_look_on_than_may_though_all_ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    state_of, all_asked = web.state_of, threading.Event()

    def late(*arguments: Any) -> Any:
        all_asked.wait(20)  # no answer begins before all have asked
        return state_of(*arguments)

    monkeypatch.setattr(web, "state_of", late)
    request = b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def statuses(port: int, count: int) -> list[bytes]:
        with silent_ones(port, count, request) as asking:
            for one in asking:
                one.settimeout(60)
            return sorted(one.recv(12)[9:] for one in asking if not all_asked.set())

    with a_site(page=True) as port:
        most = web.MAX_STREAMS_OF_ONE
        assert statuses(port, 2 * most) == [b"200"] * most + [b"503"] * most
        until = time.monotonic() + 60
        while statuses(port, most) != [b"200"] * most:  # when those have been seen to leave
            assert time.monotonic() < until
            time.sleep(0.5)


def test_one_user_leaves_places_for_the_pages_of_others() -> None:
    site = web.Site(Collector())
    ask = {origin: SimpleNamespace(scope={"state": {ORIGIN: origin}}) for origin in ("user 1", "user 2", "user 3")}

    async def statuses(origin: str) -> list[int]:
        return [(await site._stream(ask[origin])).status_code for _ in range(web.MAX_STREAMS)]  # type: ignore[arg-type]

    half = web.MAX_STREAMS // 2
    assert asyncio.run(statuses("user 1")) == [200] * half + [503] * half
    assert asyncio.run(statuses("user 2")) == [200] * half + [503] * half
    assert asyncio.run(statuses("user 3")) == [503] * web.MAX_STREAMS, "there is a bound for all"
    site._leave("user 1")
    assert 200 in asyncio.run(statuses("user 3"))


def test_half_a_character_in_what_a_device_says_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "state_of", lambda *_: {"text": "\ud800"})
    with a_site(page=True) as port:
        status, text = get(port, "/api/state")
        assert status == 200 and json.loads(text) == {"text": "\ud800"}


def test_who_takes_an_answer_slowly_gets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than an answer may wait untouched, in steps that are shorter."""
    monkeypatch.setattr(server, "TAKEN_S", 1.5)
    monkeypatch.setattr(server, "HEAD_S", 1.5)
    body = b"x" * 40_000_000

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"40000000")]})
        await send({"type": "http.response.body", "body": body})

    serving = uvicorn.Server(server.config_of(large))  # type: ignore[arg-type]
    serving.config.host, serving.config.port = "127.0.0.1", 0
    thread = threading.Thread(target=serving.run, daemon=True)
    thread.start()
    while not serving.started:
        time.sleep(0.01)
    port = serving.servers[0].sockets[0].getsockname()[1]
    with silent_ones(port, 1, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") as (one,):
        got = 0
        while got < len(body):
            taken = one.recv(1_000_000)
            assert taken, f"cut off after {got:,} bytes"
            got += len(taken)
            time.sleep(0.1)
    serving.should_exit = True
    thread.join(10)
