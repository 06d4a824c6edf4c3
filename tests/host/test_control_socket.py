"""The control socket of a device: its requests, who may use them, and where it is."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import run

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import parts
from asking import Client
from softmrc.device import Device, QueuePair
from softmrc.errors import ConfigError
from softmrc.wire import read_pcapng

PLANES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("SOFTMRC_CONTROL", raising=False)
    return tmp_path / "softmrc"


def connected(a: Device, b: Device) -> tuple[QueuePair, QueuePair]:
    qps = a.create_qp(a.create_cq(), a.create_cq()), b.create_qp(b.create_cq(), b.create_cq())
    peers = a.add_peer(qps[1].reached_at), b.add_peer(qps[0].reached_at)
    for qp, other, peer in zip(qps, reversed(qps), peers, strict=True):
        qp.init()
        qp.rtr(peer, dest_qpn=other.qpn, first_psn=other.first_psn, mtu=min(a.mtu, b.mtu))
        qp.rts()
    return qps


def write(qp: QueuePair, other: QueuePair, size: int = 100_000) -> None:
    """A message, until it has arrived."""
    source, target = qp.device.register(bytearray(size)), other.device.register(bytearray(size), remote_write=True)
    qp.post_write(source, 0, size, remote_va=target.va, rkey=target.rkey)
    assert [one.status.name for one in qp.send_cq.wait(20)] == ["SUCCESS"]


@pytest.fixture
def two(folder: Path) -> Iterator[tuple[Client, QueuePair, QueuePair]]:
    with Device(PLANES, sockets_per_plane=2, lanes=2) as a, Device(PLANES, sockets_per_plane=2) as b:
        qps = connected(a, b)
        with Client(a.control) as client:
            yield client, *qps


# Queries. ----------------------------------------------------------------------------------------------------------


def test_a_device_says_what_it_is(two) -> None:
    client, qp, _ = two
    info = client.ask("info", id="x")
    assert info["id"] == "x" and info["protocol"] == 1
    assert info["pid"] == os.getpid() and info["number"] == 0 and info["kind"] == "verbs"
    assert "pytest" in info["program"] or "python" in info["program"]
    assert [plane["address"] for plane in info["planes"]] == list(PLANES)
    assert (info["lanes"], info["mtu"]) == (2, qp.device.mtu)
    assert info["settings"]["sockets_per_plane"] == 2 and info["settings"]["congestion_control"]
    assert abs(info["started"] - time.time()) < 3600


def test_counters_are_those_of_the_device(two) -> None:
    client, qp, other = two
    write(qp, other)
    stats, device = client.ask("stats"), qp.device
    for row, own in zip(stats["planes"], device.planes(), strict=True):
        assert set(own) - {"interface", "has_gro", "receive_buffer_bytes", "send_buffer_bytes"} <= set(row)
        assert 0 < row["bytes_sent"] <= own["bytes_sent"] and row["source_ports"] == own["source_ports"]
        assert row["is_up"] and row["faulted"]["dropped"] == 0
    assert [set(row) for row in stats["lanes"]] == [set(row) for row in device.lane_stats()]
    assert (stats["queue_pairs"], stats["peers"], stats["capture"]) == (1, 1, None)


def test_queue_pairs_are_told_with_their_paths(two) -> None:
    client, qp, other = two
    write(qp, other)
    (row,) = client.ask("qps")["qps"]
    assert (row["qpn"], row["dest_qpn"], row["state"]) == (qp.qpn, other.qpn, "rts")
    assert row["lane"] == qp.qpn % 2
    assert row["peer"]["planes"] == [f"{plane.address}:{plane.port}" for plane in other.reached_at]
    assert row["stats"]["messages_completed"] == 1 and row["messages"] == 0
    assert len(row["port_window_bytes"]) == len(PLANES) and row["smoothed_rtt_us"] > 0
    evs = qp.evs()
    assert [(ev["value"], ev["plane"], ev["state"]) for ev in row["evs"]] == [
        (int(ev["value"]), int(ev["port"]), "good") for ev in evs
    ]
    assert "evs" not in client.ask("qps", qpn=qp.qpn, evs=False)["qps"][0]
    assert "`qpn`: must be a queue pair of this device (got 77)" in client.refused("qps", qpn=77)
    idle = qp.device.create_qp(qp.device.create_cq(), qp.device.create_cq())
    assert client.ask("qps", qpn=idle.qpn)["qps"] == [{"qpn": idle.qpn, "lane": idle.qpn % 2, "state": "reset"}]


def test_events_are_told_again_and_none_is_taken(two) -> None:
    client, qp, _ = two
    first = client.ask("events")
    assert [event["type"] for event in first["events"]].count("qp_state") >= 2
    rts = [event for event in first["events"] if event["type"] == "qp_state"][-1]
    assert rts["text"] == f"queue pair {qp.qpn:#x} is in rts" and abs(rts["at"] - time.time()) < 3600
    again = client.ask("events")["events"]
    assert again[: len(first["events"])] == first["events"], "asking takes nothing away"
    assert not [one for one in client.ask("events", since=first["next"])["events"] if one in first["events"]]
    qp.device.set_port(1, up=False)
    news = client.ask("events", since=first["next"])
    assert "plane 1 is down" in [event["text"] for event in news["events"]] and news["lost"] == 0
    assert len(client.ask("events", most=1)["events"]) == 1
    assert client.ask("events", since=[0, 0], most=1)["lost"] > 0
    types = {event.type.name.lower() for event in qp.device.poll_events()}
    assert {"qp_state", "port_state"} <= types


# Changes. ----------------------------------------------------------------------------------------------------------


def test_weather_is_made_and_ended(two) -> None:
    client, qp, other = two
    now = client.ask("faults", set="drop=0.25;2:black_hole")["faults"]
    assert [row["drop"] for row in now] == [0.25] * 3 and [row["black_hole"] for row in now] == [False, False, True]
    assert "dorp" in client.refused("faults", set="dorp=1")
    assert client.ask("faults")["faults"] == now, "what is refused changes nothing"
    write(qp, other, 1_000_000)
    assert sum(row["faulted"]["dropped"] for row in client.ask("stats")["planes"]) > 0
    assert not any(row["drop"] or row["black_hole"] for row in client.ask("faults", set="")["faults"])


def test_a_capture_is_taken(two, tmp_path: Path) -> None:
    client, qp, other = two
    file = tmp_path / "taken.pcapng"
    assert "absolute" in client.refused("capture", start="taken.pcapng")
    assert "cannot" in client.refused("capture", start=str(tmp_path / "none" / "taken.pcapng"))
    assert "no capture runs" in client.refused("capture", stop=True)
    assert client.ask("capture", start=str(file))["capture"] == {"path": str(file), "packets": 0}
    assert "runs already" in client.refused("capture", start=str(tmp_path / "second"))
    write(qp, other)
    ended = client.ask("capture", stop=True)["capture"]
    assert ended["packets"] == len(list(read_pcapng(file.read_bytes()))) >= 100_000 // qp.device.mtu
    assert client.ask("capture")["capture"] is None


def test_paths_are_denied_and_allowed_as_far_as_they_can_be(two) -> None:
    client, qp, other = two
    done = client.ask("deny", qpn=qp.qpn, evs=[0, 99, 1])
    assert done["done"] == 2 and [(one["qpn"], one["ev"]) for one in done["failed"]] == [(qp.qpn, 99)]
    assert [ev["state"] for ev in client.ask("qps")["qps"][0]["evs"][:3]] == ["denied", "denied", "good"]
    assert client.ask("allow", evs=[0, 1]) == {"done": 2, "failed": []}
    assert client.ask("deny", plane=2)["done"] == 2
    states = {(ev["plane"], ev["state"]) for ev in client.ask("qps")["qps"][0]["evs"]}
    assert states == {(0, "good"), (1, "good"), (2, "denied")}
    write(qp, other)
    assert "needs either evs or plane" in client.refused("deny", qpn=qp.qpn)
    assert "`qpn`: must be" in client.refused("deny", qpn=5, evs=[0])
    assert "`plane`: must be 0 to 2 (got 3)" in client.refused("deny", plane=3)


def test_a_path_is_replaced(two) -> None:
    client, qp, _ = two
    own = client.ask("qps")["qps"][0]["evs"]
    assert client.refused("replace", qpn=qp.qpn, ev=99, value=own[0]["value"])
    assert "hexadecimal" in client.refused("replace", qpn=qp.qpn, ev=0, value="xyz")
    client.ask("replace", qpn=qp.qpn, ev=0, value=own[1]["value"])
    assert client.ask("qps")["qps"][0]["evs"][0]["value"] == own[1]["value"]


def test_a_port_is_taken_out_and_put_back(two) -> None:
    client, qp, other = two
    assert [row["is_up"] for row in client.ask("port", plane=0, up=False)["planes"]] == [False, True, True]
    write(qp, other)
    assert all(row["is_up"] for row in client.ask("port", plane=0, up=True)["planes"])


def test_a_probe_is_sent_and_answered(two) -> None:
    client, _, _ = two
    row = client.ask("qps")["qps"][0]
    since = client.ask("events")["next"]
    assert client.ask("probe", peer=row["peer"]["number"], plane=1, evs=[row["evs"][2]["value"]], token=77)["asked"]
    until = time.monotonic() + 20
    while not (found := [e for e in client.ask("events", since=since)["events"] if e["type"] == "probe_answer"]):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert found[0]["psn"] == 77
    assert "peer" in client.refused("probe", peer=99, plane=1, evs=[0])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"nonsense", "no JSON"),
        (b"[]", "an object"),
        (b"{}", "`op`: must be a text (got nothing)"),
        (b'{"op": 3}', "`op`: must be a text (got 3)"),
        (b'{"op": "sing"}', "`op`: must be one of info, stats, qps"),
        (b'{"op": "info", "plane": 1}', "`plane`: no such argument of info. It takes none."),
        (b'{"op": "port", "plane": true, "up": true}', "`plane`: must be 0 to 2 (got true)"),
        (b'{"op": "port", "plane": 1, "up": 1}', "`up`: must be true or false (got 1)"),
        (b'{"op": "events", "since": [-1]}', "`since`: must be a list of numbers of 64 bits (got [-1])"),
        (b'{"op": "events", "most": 0}', "`most`: must be 1 to 4096 (got 0)"),
        (b"[" * 1000, "too deep"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(two, line: bytes, words: str) -> None:
    client, _, _ = two
    answer = client.line(line)
    assert not answer["ok"] and words in answer["error"], answer
    client.ask("info")


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
        with Device(PLANES[:1]) as device, Client(device.control) as client:
            yield client


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=200).filter(lambda line: b"\n" not in line and line.strip(b" \t\r")))
def test_no_line_is_the_end_of_us(lone: Client, line: bytes) -> None:
    assert not lone.line(line)["ok"]


OPERATIONS = ["info", "stats", "qps", "events", "faults", "capture", "port", "deny", "allow", "replace", "probe"]
NAMES = ["qpn", "evs", "since", "most", "set", "stop", "plane", "up", "ev", "value", "peer", "token", "id"]
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 1 << 40), st.text(max_size=5), st.lists(st.integers(-1, 9), max_size=3)
)


@settings(deadline=None)
@given(st.sampled_from(OPERATIONS), st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4))
def test_no_request_is_the_end_of_us(lone: Client, op: str, more: dict[str, object]) -> None:
    answer = lone.line(json.dumps({"op": op, **more}).encode())
    assert answer["ok"] or answer["error"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.booleans())
def test_json_means_what_it_means_to_python(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    if "\\ud" in text or any(0xD800 <= ord(c) < 0xE000 for c in text):
        return  # half a character, which UTF-8 has no bytes for
    assert json.loads(parts.face_json(text)) == value
    assert "\n" not in parts.face_json(text)


REFUSED = object()


@given(st.text(alphabet='{}[]",:\\ue+-.0123456789truefalsn \t', max_size=40))
@example("1e-400")
@example("[0e-400, -0.0]")
@example("1e400")
def test_what_is_no_json_is_refused(text: str) -> None:
    def finite(digits: str) -> float:  # one that a fraction of 64 bits can hold, large or small
        value = float(digits)
        if math.isinf(value) or (value == 0 and set(digits.lower().partition("e")[0]) & set("123456789")):
            raise ValueError(digits)
        return value

    def held(digits: str) -> float:  # what no 64-bit number can hold is a fraction, there and here
        return value if -(2**63) <= (value := int(digits)) < 2**63 else float(digits)

    found = expected = REFUSED
    with contextlib.suppress(ValueError, ZeroDivisionError):
        expected = json.loads(text, parse_constant=lambda _: 1 / 0, parse_int=held, parse_float=finite)
    with contextlib.suppress(ValueError):
        found = json.loads(parts.face_json(text))
    if text.count("[") + text.count("{") <= 16:  # beyond, it is too deep
        assert found == expected


# Where it is, and for whom. ----------------------------------------------------------------------------------------


def test_it_is_its_owners_alone_and_goes_with_the_device(folder: Path) -> None:
    with Device(PLANES[:1]) as first, Device(PLANES[:1]) as second:
        paths = [Path(first.control), Path(second.control)]
        assert paths == [folder / f"{os.getpid()}-{number}.sock" for number in (0, 1)]
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in paths)
        first.close()
        assert sorted(folder.iterdir()) == paths[1:]
        with Device(PLANES[:1]) as third:
            assert Path(third.control) == paths[0], "a number is used again"
    assert list(folder.iterdir()) == []


def test_it_can_be_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTMRC_CONTROL", "0")
    with Device(PLANES[:1]) as device:
        assert device.control == "" and not folder.exists()
    monkeypatch.setenv("SOFTMRC_CONTROL", "off")
    with pytest.raises(ConfigError, match="SOFTMRC_CONTROL"):
        Device(PLANES[:1])


def test_a_folder_that_lets_others_in_is_not_used(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    with Device(PLANES[:1]) as device:
        assert device.control == "" and list(folder.iterdir()) == []
    folder.rmdir()
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)
    with Device(PLANES[:1]) as device:
        assert device.control == "" and list(elsewhere.iterdir()) == []


def test_what_the_dead_left_is_removed_and_the_living_stay(folder: Path) -> None:
    code = "import os; from softmrc.device import Device; d = Device(['127.0.0.1']); print(d.control); os._exit(0)"
    killed = run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    assert Path(killed).exists()
    folder.joinpath("note.txt").touch()
    (folder / f"{2**22 + 1}-0.sock").touch()  # no process has that number, and none listens
    with Device(PLANES[:1]) as one, Device(PLANES[:1]) as two:
        living = sorted([Path(one.control).name, Path(two.control).name, "note.txt"])
        deadline = time.monotonic() + 30  # it is done when there is time for it
        while sorted(path.name for path in folder.iterdir()) != living and time.monotonic() < deadline:
            time.sleep(0.02)
        assert sorted(path.name for path in folder.iterdir()) == living


def test_a_socket_that_accepts_nobody_now_keeps_its_number(folder: Path) -> None:
    """The queue of those that wait there is full; the next device has another number, and is not refused."""
    folder.mkdir(mode=0o700)
    with contextlib.ExitStack() as stack:
        busy = stack.enter_context(socket.socket(socket.AF_UNIX))
        busy.bind(str(folder / f"{os.getpid()}-0.sock"))
        busy.listen(0)
        with pytest.raises(BlockingIOError):
            for _ in range(100):
                waits = stack.enter_context(socket.socket(socket.AF_UNIX))
                waits.setblocking(False)
                waits.connect(busy.getsockname())
        with Device(["127.0.0.1"]) as device:
            assert str(device.control) == str(folder / f"{os.getpid()}-1.sock")


def test_a_forked_child_has_none_and_takes_none_away(folder: Path) -> None:
    with Device(PLANES[:1]) as device, Client(device.control) as client:
        client.ask("info")
        child = os.fork()
        if child == 0:
            try:
                device.close()
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        client.ask("info")
        with Client(device.control) as second:
            assert second.ask("info")["pid"] == os.getpid()


def test_who_is_silent_or_endless_or_one_too_many_holds_up_nobody(folder: Path) -> None:
    with Device(PLANES[:1]) as device:
        silent = [Client(device.control) for _ in range(16)]
        for client in silent:
            client.ask("info")
        with Client(device.control) as late:
            assert late.socket.recv(1) == b"", "there is room for sixteen"
        silent[0].close()
        endless = silent[1]
        with pytest.raises(OSError):
            for _ in range(100):
                endless.socket.sendall(b"x" * 65_536)
            assert endless.socket.recv(1) == b"", "it is cut off"
            raise ConnectionError
        until = time.monotonic() + 20
        while True:  # who left has to be noticed first
            with Client(device.control) as client:
                try:
                    client.ask("info")
                    break
                except (ValueError, OSError):
                    assert time.monotonic() < until
                    time.sleep(0.01)
        for client in silent:
            client.close()


def test_many_requests_at_once_are_all_answered_in_their_order(folder: Path) -> None:
    with Device(PLANES[:1]) as device, Client(device.control) as client:
        count = 1500  # more than a second's
        client.socket.sendall(b"".join(b'{"op": "faults", "id": %d}\n' % number for number in range(count)))
        client.socket.shutdown(socket.SHUT_WR)
        assert [json.loads(line)["id"] for line in client.file] == list(range(count))


def test_a_capture_goes_into_a_file_and_waits_for_no_reader(folder: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with Device(PLANES) as device, contextlib.closing(Client(device.control)) as client:
        assert "no regular file" in client.refused("capture", start=str(pipe))
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        assert "no regular file" in client.refused("capture", start=str(pipe))
        os.close(reader)
        device.create_cq()


STARVED = """
import os, resource, socket, sys, time
from softmrc.device import Device
with Device(["127.0.0.1"]) as device:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    clients = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for client in clients:
        client.connect(device.control)
    before = time.process_time()
    time.sleep(1)
    print(time.process_time() - before)
    for one in held:
        os.close(one)
    clients[0].settimeout(5)
    clients[0].sendall(b'{"op": "info"}\\n')
    print(len(clients[0].recv(65536)) > 10)
"""


def test_who_waits_at_a_door_without_descriptors_costs_nothing(folder: Path) -> None:
    done = run([sys.executable, "-c", STARVED], capture_output=True, text=True, timeout=60, check=True)
    spent, is_answered = done.stdout.split()
    assert float(spent) < 0.5, "of a second in which nothing could be done"
    assert is_answered == "True"


def test_names_that_are_no_text_are_still_json(folder: Path) -> None:
    """A command line may hold any bytes, and is cut at some length."""
    script = (
        "import json, socket; from softmrc.device import Device\n"
        "with Device(['127.0.0.1']) as device:\n"
        "    client = socket.socket(socket.AF_UNIX); client.connect(device.control)\n"
        '    client.sendall(b\'{"op": "info"}\\n\')\n'
        "    print(json.loads(client.makefile('rb').readline())['program'].count('?'))"
    )
    odd = {b"\xff\xfe": 2, ("x" + "ü" * 900).encode(): 0, ("ü" * 900).encode(): 0}
    for more, least in odd.items():
        done = run([sys.executable, "-c", script, more], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 and int(done.stdout) >= least, done.stderr
