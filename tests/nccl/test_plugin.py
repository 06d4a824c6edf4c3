"""The plugin, as NCCL's service and progress threads use it, by every table that it has."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

import needs
from asking import Client
from ports import STRIDE, free_ports
from sanitizers import NOT_UNDER_SANITIZERS
from softmrc import _core
from softmrc.nccl import plugin_path
from softmrc.wire import read_pcapng

VERSIONS = (8, 9, 10, 11, 12)
WIDE = "lanes = 3"
SMALL_PACKETS = "lanes = 2\nmtu = 1408"
UNLIKE_SECRET = "refused: the secret is not the same on both sides"
STRANGER = "does not know the secret"
UNLIKE_PLANES = "the connecting sides have 1 plane and 4 planes; name as many on every host (SOFTMRC_PLANES)"
OF_THREADS = os.environ.get("SOFTMRC_SANITIZER") == "thread"


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("version", VERSIONS)
def test_messages_arrive_whole_and_in_order(harness, version: int, processes: int) -> None:
    connections = 1 + version % 3
    harness(version, processes, "traffic", connections, 40, version, device=WIDE if processes == 2 else "")


@pytest.mark.process
@pytest.mark.parametrize(
    "weather",
    [
        "drop=0.05",
        "reorder=0.3,reorder_delay_us=2000",
        "duplicate=0.3,corrupt=0.01",
        "2:black_hole",
        "drop=0.02,reorder=0.1,duplicate=0.1;1:black_hole;3:delay_us=3000",
    ],
)
def test_messages_arrive_under_any_faults(harness, weather: str) -> None:
    harness(11, 2, "traffic", 2, 40, 5, device=SMALL_PACKETS, SOFTMRC_FAULTS=weather)


@pytest.mark.process
def test_planes_that_break_and_heal_on_the_way(harness, tmp_path: Path) -> None:
    weather = tmp_path / "weather"
    is_over = threading.Event()

    def break_planes() -> None:
        for step in range(1000):
            weather.write_text(f"{step % 4}:black_hole" if step % 3 else "drop=0.02")
            if is_over.wait(0.05):
                return

    breaker = threading.Thread(target=break_planes)
    breaker.start()
    try:
        harness(12, 2, "traffic", 3, 80, 6, device=WIDE, SOFTMRC_FAULTS=f"@{weather}")
    finally:
        is_over.set()
        breaker.join()


@pytest.mark.process
@pytest.mark.skipif(OF_THREADS, reason="it reads what is being written, on purpose, as a GPU does")
@pytest.mark.parametrize(
    ("messages", "words"), [(100, 8192), (20, 65_536)]
)  # in one part, and in parts by several lanes
def test_no_word_is_ever_seen_torn(harness, messages: int, words: int) -> None:
    harness(11, 2, "words", messages, words, device=SMALL_PACKETS, SOFTMRC_FAULTS="reorder=0.3,drop=0.01")


@pytest.mark.process
@pytest.mark.parametrize("version", [8, 12])
def test_lanes_wake_up_for_every_message(harness, version: int) -> None:
    harness(version, 2, "many", 60, 15_000, device="spin_us = 0")
    harness(version, 2, "many", 400, 0)


@pytest.mark.process
@pytest.mark.parametrize("story", ["abort_receive", "abort_send"])
@pytest.mark.parametrize("processes", [1, 2])
def test_memory_is_let_go_of_with_requests_pending(harness, story: str, processes: int) -> None:
    harness(11, processes, story, device=WIDE, SOFTMRC_FAULTS="delay_us=5000")


@pytest.mark.process
@pytest.mark.parametrize("version", [8, 11])
@pytest.mark.parametrize("size", [1000, 300_000])
def test_who_leaves_first_is_still_heard(harness, version: int, size: int) -> None:
    for _ in range(3):
        harness(version, 2, "leaves_first", size, SOFTMRC_FAULTS="drop=0.1")


@pytest.mark.process
@pytest.mark.parametrize("story", ["killed_sender", "killed_receiver"])
def test_a_killed_peer_is_noticed_by_who_waits_for_it(harness, story: str) -> None:
    harness(11, 2, story)


@pytest.mark.process
def test_an_outage_names_the_setting_and_then_the_planes(play) -> None:
    impatient = "timeout = 10\nretry_linear = 3\nretry_exponential = 2"
    story = play(11, 2, "traffic", 1, 1, 1, device=impatient, SOFTMRC_FAULTS="black_hole", HARNESS_LOUD="1")
    code, _, wrong = story.end()
    words = "stopped answering (retry_exponential in SOFTMRC_CONFIG: how long silence is borne): "
    assert code and words + "nothing came back over planes 0, 1, 2 and 1 more" in wrong, wrong


@pytest.mark.parametrize("processes", [1, 2])
def test_a_sender_that_is_ahead_overwrites_nothing(harness, processes: int) -> None:
    harness(11, processes, "ahead")


def test_a_send_that_is_too_long_fails_at_both_ends(harness) -> None:
    harness(11, 2, "too_long")


@pytest.mark.process
@pytest.mark.parametrize("processes", [1, 2])
def test_a_forked_child_disturbs_nothing(harness, processes: int) -> None:
    harness(11, processes, "fork")


@pytest.mark.process
def test_nothing_grows(harness) -> None:
    harness(11, 1, "cycle", 100, 10)
    harness(8, 1, "cycle", 50, 5)


@pytest.mark.process
@NOT_UNDER_SANITIZERS  # which open further files
@pytest.mark.parametrize("strangers", [2000])
def test_a_crowd_of_unauthenticated_clients_takes_no_descriptors_from_connectors(harness, strangers: int) -> None:
    harness(11, 1, "crowd", strangers)


def test_a_forked_child_keeps_no_listener(harness) -> None:
    harness(11, 1, "outlived")


def test_a_forked_child_keeps_no_connection_that_is_being_set_up(harness) -> None:
    harness(11, 1, "outlived_connector")


@pytest.mark.process
@pytest.mark.parametrize("device", ["", "max_pending = 2\nmax_pending_per_address = 2"])
def test_threads_connect_while_their_process_forks(harness, device: str) -> None:
    harness(11, 1, "forks_meanwhile", 4, 50, device=device)


def test_a_handle_of_a_failed_connection_leads_to_no_later_one(harness) -> None:
    harness(11, 1, "stale_handle")


def test_it_listens_at_addresses_of_its_planes_only(harness) -> None:
    harness(11, 1, "bound", SOFTMRC_PLANES="127.0.0.2")


@pytest.mark.process
@pytest.mark.parametrize(
    ("ours", "theirs", "word", "logged"),
    [
        ({}, "SOFTMRC_SECRET=b", UNLIKE_SECRET, STRANGER),
        ({"SOFTMRC_SECRET": "a"}, "SOFTMRC_SECRET=", UNLIKE_SECRET, STRANGER),
        ({}, "SOFTMRC_PLANES=127.0.0.1", UNLIKE_PLANES, "does not match: " + UNLIKE_PLANES),
    ],
)
def test_a_peer_that_differs_learns_why(harness, ours: dict[str, str], theirs: str, word: str, logged: str) -> None:
    harness(12, 1, "unlike", HARNESS_DIFFERS=theirs, HARNESS_WORD=word, HARNESS_LOGGED=logged, **ours)


def test_a_secret_that_both_know_lets_them_meet(harness) -> None:
    harness(11, 2, "traffic", 1, 5, 1, SOFTMRC_SECRET="between us")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (
            {"SOFTMRC_PLANES": "nonsense0"},
            "no interface nonsense0, and 'nonsense0' is no address either; there is ",
        ),
        ({"device": "lanes = 'three'"}, "device.lanes"),
        ({"device": "mtu = 1401"}, "a multiple of 128"),
        ({"device": "congestion_control = 'best'"}, "`congestion_control`: must be "),
        ({"device": "speed = 3"}, "device.speed"),
        ({"SOFTMRC_FABRIC": "x", "SOFTMRC_HOST": "1"}, "SOFTMRC_FABRIC"),
        ({"SOFTMRC_FAULTS": "dorp=0.1"}, "dorp"),
        ({"SOFTMRC_CONTROL": "off"}, "`SOFTMRC_CONTROL`: must be 0 or 1 (got 'off')"),
        ({"device": "max_send_wr = 64"}, "`max_send_wr`: must be at least 65"),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_init(harness, settings: dict[str, str], word: str) -> None:
    harness(11, 1, "refused", HARNESS_WORD=word, **settings)


def test_a_file_of_settings_that_is_a_folder_is_refused(harness, tmp_path: Path) -> None:
    harness(11, 1, "refused", HARNESS_WORD="must be a file, and is a directory", SOFTMRC_CONFIG=str(tmp_path))


def test_a_device_whose_second_lane_does_not_open_is_refused(harness) -> None:
    """Not the end of the process, whose first lane runs by then."""
    with contextlib.ExitStack() as stack:
        port = free_ports(2)
        stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)).bind(("127.0.0.1", port + 1))
        harness(11, 1, "unopened", device=f"lanes = 2\nport = {port}", HARNESS_WORD="in use")


def test_two_communicators_of_a_process_share_a_fixed_port(harness) -> None:
    """The second station, for traffic within the process, has separate ports."""
    harness(11, 1, "traffic", 1, 20, 11, device=f"port = {free_ports(STRIDE)}")


@pytest.mark.process
@pytest.mark.parametrize("polls", [1, 2])
def test_who_is_held_up_after_its_offer_is_connected_all_the_same(harness, polls: int) -> None:
    harness(11, 1, "held_up", polls)


BOUNDS = [
    (name, value)
    for name, default, bounds, _ in _core.settings()["DeviceConfig"][1]
    for value in bounds or ()
    if value != default and name != "port"  # which two on one host cannot share
]


@pytest.mark.process
@pytest.mark.parametrize(("name", "value"), BOUNDS)
def test_the_least_and_the_most_of_a_setting_work_or_are_refused_by_name(play, name: str, value: float) -> None:
    code, said, wrong = play(11, 2, "traffic", 1, 8, 3, device=f"{name} = {value}").end()
    assert (code == 0 and "all holds" in said) or ("init gave 2" in wrong and name in wrong), f"{code} {said}{wrong}"


@pytest.mark.process
def test_a_running_plugin_is_inspected_and_controlled(play, tmp_path: Path) -> None:
    until, folder = tmp_path / "until", tmp_path / "softmrc"
    story = play(11, 2, "tarry", device=WIDE, XDG_RUNTIME_DIR=str(tmp_path), HARNESS_UNTIL=str(until))
    try:
        deadline = time.monotonic() + 30
        while len(sockets := sorted(folder.glob("*.sock"))) < 2:
            assert not story.is_over() and time.monotonic() < deadline
            time.sleep(0.01)
        with Client(sockets[0]) as one:
            info = one.ask("info")
            assert (info["kind"], info["lanes"], len(info["planes"])) == ("nccl", 3, 4)
            assert info["program"].split()[0].endswith("nccl_harness") and info["settings"]["lanes"] == 3
            while len(pairs := [pair for pair in one.ask("qps")["qps"] if pair["state"] == "rts"]) < 6:
                assert time.monotonic() < deadline
            assert {pair["lane"] for pair in pairs} == {0, 1, 2} and all(len(pair["evs"]) == 16 for pair in pairs)
            one.ask("faults", set="drop=0.02;1:black_hole")
            sent = one.ask("stats")["planes"][0]["packets_sent"]
            while not any(event["type"] == "ev_state" for event in one.ask("events")["events"]):
                assert time.monotonic() < deadline, "a plane that swallows everything is left"
            one.ask("faults", set="")
            while one.ask("stats")["planes"][0]["packets_sent"] < sent + 1000:
                assert time.monotonic() < deadline, "and they go on"
    finally:
        until.touch()
        code, said, wrong = story.end()
    assert code == 0 and "all holds" in said, wrong
    assert list(folder.iterdir()) == []


def test_what_passes_can_be_captured(harness, tmp_path: Path) -> None:
    harness(11, 2, "traffic", 1, 5, 1, SOFTMRC_CAPTURE=str(tmp_path / "job-%p.pcapng"))
    files = list(tmp_path.glob("job-*.pcapng"))
    assert len(files) == 2
    packets = [record.parse() for file in files for record in read_pcapng(file.read_bytes())]
    assert len(packets) > 500


@needs.tools("nm")
def test_it_shows_its_tables_and_nothing_else() -> None:
    listed = subprocess.run(["nm", "-D", "--defined-only", plugin_path()], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    if "SOFTMRC_SANITIZER" not in os.environ:
        assert names == {f"ncclNetPlugin_v{version}" for version in VERSIONS}


@needs.tools("readelf")
def test_it_stays_once_it_is_loaded_and_needs_only_the_c_library() -> None:
    listed = subprocess.run(["readelf", "-d", plugin_path()], capture_output=True, text=True, check=True).stdout
    assert "NODELETE" in listed
    assert "soname: [libnccl-net.so]" in listed, "by which NCCL asks for it when it starts anew in a process"
    needed = set(re.findall(r"NEEDED.*\[(lib[^\]]+)\]", listed))
    if "SOFTMRC_SANITIZER" not in os.environ:
        usual = {"libc", "libm", "libpthread", "libdl", "libgcc_s", "libcrypto"}
        assert {name.split(".")[0] for name in needed} <= usual
