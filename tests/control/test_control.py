"""Devices asked and told: what they answer, and what becomes of answers that are none."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.control.pretended import Pretended, a_device, device, home
from typer.testing import CliRunner, Result

from softmrc.cli import app
from softmrc.errors import ConfigError, MrcError, RemoteError, UsageError
from softmrc.fabric import AddressPlan, Shape
from softmrc.fabric.denylist import Denylist, DenylistEntry
from softmrc.ops import control
from softmrc.ops.control import client

FABRIC = "[fabric]\nplanes = 2\nhosts = 8\nhosts_per_leaf = 4\nspines = 2\n"
PLAN = AddressPlan(Shape(planes=2, hosts=8, hosts_per_leaf=4, spines=2))
__all__ = ["device", "home"]  # fixtures


def ctl(*words: str) -> Result:
    return CliRunner().invoke(app, ["ctl", *words])


def rows(*words: str) -> list[dict]:
    """What is in the one list of the object that is printed."""
    done = ctl(*words, "--json")
    assert done.exit_code == 0, done.output
    (found,) = [value for value in json.loads(done.output).values() if isinstance(value, list)]
    return found


def test_a_device_is_found_and_says_who_it_is(device: Pretended) -> None:
    (found,) = rows("devices")
    assert found["device"] == f"{os.getpid()}-0" and found["kind"] == "verbs"
    with control.find_device() as one, control.find_device(str(os.getpid())) as two:
        assert one.name == two.name == f"{os.getpid()}-0"
    assert "python train.py" in ctl("devices").output


def test_planes_queue_pairs_and_paths_are_shown(device: Pretended) -> None:
    assert [row["is_up"] for row in rows("planes")] == [True, True]
    (qp,) = rows("qps")
    assert qp["qpn"] == 0x22
    assert [row["state"] for row in rows("evs", str(0x22))] == device.states
    shown = ctl("qps").output
    assert "0x22" in shown and "●" in shown and "○" in shown
    assert "assumed_bad" in ctl("evs", str(0x22)).output


def test_paths_are_denied_and_allowed_in_batches(device: Pretended) -> None:
    assert ctl("deny", "--all", "--ev", "0", "--ev", "3", "--qpn", str(0x22)).output == "2 denied\n"
    assert (
        ctl("deny", "-d", str(os.getpid()), "--ev", "0", "--ev", "3", "--qpn", "0x22").output == "2 denied\n"
    )  # as `ctl qps` shows it
    assert device.states == ["denied", "good", "assumed_bad", "denied"]
    assert ctl("allow", "--plane", "0", "--all").exit_code == 0
    assert device.states == ["good", "good", "good", "denied"]


def test_who_denies_the_last_path_is_told_so(device: Pretended) -> None:
    device.states[:] = ["good"] * 4
    assert ctl("deny", "--plane", "0", "--all").stderr == ""
    last = ctl("deny", "--plane", "1", "--all", "--json")
    assert last.exit_code == 0 and json.loads(last.stdout)["devices"][0]["done"] == 2
    assert "no path is left to queue pair 0x22: nothing is sent" in last.stderr and "ctl allow" in last.stderr
    assert ctl("allow", "--plane", "1", "--all").stderr == ""


@pytest.mark.parametrize(
    "words, named",
    [
        (["deny"], "--ev N, which you may repeat, or --plane N"),
        (["deny", "--ev", "1"], "-d NAME, or --all"),
        (["deny", "--ev", "1", "-d", "4711", "--all"], "cannot be combined with --device"),
        (["port", "0", "down"], "-d NAME, or --all"),
        (["replace", "0x22", "1", "49999"], "-d NAME"),
        (["faults", "drop=0.5"], "-d NAME, or --all"),
        (["capture", "x"], "-d NAME, or --all"),
        (["capture"], "--stop"),
        (["capture", "x", "--stop"], "--stop"),
    ],
)
def test_what_is_missing_is_called_as_the_command_line_calls_it(
    device: Pretended, words: list[str], named: str
) -> None:
    refused = ctl(*words).exception
    assert isinstance(refused, ConfigError) and named in str(refused) and "None" not in str(refused)
    assert not [one for one in device.asked if one["op"] != "info"]


def test_of_a_batch_all_that_can_be_is_done_unless_it_shall_stop(device: Pretended) -> None:
    with control.find_device() as node:
        done = node.deny([0, 9, 1])
        assert (done.done, [(one.ev, one.error) for one in done.failed]) == (2, [(9, "`ev`: must be below 4 (got 9)")])
        node.allow([0, 1])
        stopped = node.deny([0, 9, 1], stop=True)
        assert (stopped.done, [one.ev for one in stopped.failed]) == (1, [9])
        assert device.states[:2] == ["denied", "good"]
        with pytest.raises(ConfigError, match="either a list of indices or a plane"):
            node.deny([1], plane=1)
    failed = ctl("deny", "--ev", "9", "--all")
    assert failed.exit_code == 3 and "EV 9: `ev`: must be below 4 (got 9)" in failed.output


def test_a_plane_is_taken_out_of_service_and_put_back(device: Pretended) -> None:
    (changed,) = rows("port", "1", "down", "--all")
    assert [row["is_up"] for row in changed["planes"]] == [True, False]
    assert "down" in ctl("planes").output
    (changed,) = rows("port", "1", "up", "--all")
    assert [row["is_up"] for row in changed["planes"]] == [True, True]
    assert isinstance(ctl("port", "1", "sideways", "--all").exception, ConfigError)


def test_a_path_is_replaced(device: Pretended) -> None:
    assert ctl("replace", "-d", str(os.getpid()), str(0x22), "1", "49999").exit_code == 0
    assert device.asked[-1] == {"op": "replace", "qpn": 0x22, "ev": 1, "value": 49999}
    for odd in ("1" * 5000, "١٢"):
        ctl("replace", "-d", str(os.getpid()), str(0x22), "1", odd)
        assert device.asked[-1]["value"] == odd, "whether it is a wide value, the device says"
    ctl("replace", "-d", str(os.getpid()), str(0x22), "1", "fcbb:bb00")
    assert device.asked[-1]["value"] == "fcbb:bb00"
    ctl("replace", "-d", str(os.getpid()), "3", "1", "49999", "--profile", "--all-copies")
    assert device.asked[-1] == {"op": "replace", "profile": 3, "ev": 1, "value": 49999, "all_copies": True}
    assert isinstance(ctl("replace", "-d", str(os.getpid()), "3", "1", "49999", "--all-copies").exception, ConfigError)


def test_events_come_once_by_type_and_with_those_that_were_lost(device: Pretended) -> None:
    device.tell("ev_state")
    device.tell("port_state")
    with control.find_device() as node:
        assert [one["type"] for one in node.events(("port_state",)).events] == ["port_state"]
        device.tell("ev_state")
        assert [one["type"] for one in node.events().events] == ["ev_state"]
        assert node.events().events == []
        for _ in range(4):
            device.tell("ev_state")
        device.forgotten = 5
        told = node.events()
        assert (told.lost, len(told.events)) == (2, 2)
    assert "ev_state happened" in ctl("events").output


def test_types_of_events_are_those_that_a_device_keeps(device: Pretended) -> None:
    header = (Path(__file__).parents[2] / "core/proto/event.h").read_text()
    assert re.findall(r"X\((\w+), true,", header) == list(control.EVENT_TYPES)
    device.tell("port_state")
    refused = ctl("events", "--type", "prot_state").exception
    assert isinstance(refused, ConfigError) and "Did you mean port_state?" in str(refused)
    assert "packet_refused" in str(refused) and "port_state happened" in ctl("events", "--type", "port_state").output


def test_queue_pairs_and_paths_are_written_in_one_way(device: Pretended) -> None:
    assert "0x22" in ctl("qps").output
    (first, *_) = rows("evs", "0x22")
    assert isinstance(first["value"], int) and f"{first['value']:#010x}" in ctl("evs", "0x22").output
    assert (
        "EV 1 of queue pair 0x22 is 0x0000a158"
        in ctl("replace", "-d", str(os.getpid()), "0x22", "1", "0x0000a158").output
    )
    assert device.asked[-1]["value"] == 0xA158
    (one,) = rows("probe", "3", "1", "--ev", "0x0000a158")
    assert one["ev"] == 0xA158
    assert "must be a value of an EV, 0 to 0xffffffff" in ctl("probe", "3", "1", "--ev", "0x1ffffffff").output


def test_a_batch_of_probes_tells_what_answered(device: Pretended) -> None:
    device.silent_evs = {7}
    with control.find_device() as node:
        found = control.probe(node, 3, 1, [5, 7, 0], timeout_s=0.1)
    assert [(one.ev, one.asked, one.took_ns, one.arrival_plane, one.service_ns) for one in found] == [
        (5, True, 12_345, 1, 345), (7, True, None, None, None), (0, False, None, None, None),
    ]  # fmt: skip
    (one,) = rows("probe", "3", "1", "--ev", "5", "--dscp", "46")
    assert (one["took_ns"], one["service_ns"]) == (12_345, 345) and device.asked[-2]["dscp"] == 46
    with control.find_device() as node, pytest.raises(ConfigError, match="evs"):
        control.probe(node, 3, 1, [])


def in_the_fabric(device: Pretended) -> Pretended:
    device.own, device.peer = str(PLAN.nic_address(0, 0)), f"[{PLAN.nic_address(5, 0)}]:4791"
    # Queue pairs list their EVs by plane, the fabric numbers them by path.
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    device.values = [PLAN.carrier(0, 5, *place).packed.hex() for place in places]
    return device


def a_push(folder: Path) -> list[str]:
    """The words that push a list, which names one link."""
    fabric, denylist = folder / "fabric.toml", folder / "denylist.json"
    fabric.write_text(FABRIC)
    entry = DenylistEntry("p0.leaf0-spine1", "link", "dead", 1.0, ("p0.leaf0>spine1", "p0.spine1>leaf0"))
    Denylist("fabric", (entry,)).save(denylist)
    return ["push", str(denylist), "--fabric", str(fabric)]


def test_a_denylist_is_pushed_and_what_left_it_is_allowed_again(device: Pretended, tmp_path: Path) -> None:
    in_the_fabric(device)
    words = a_push(tmp_path)
    device.states[0] = "denied"
    (done,) = rows(*words)
    assert (done["denied"], done["allowed"], done["skipped"], done["failed"]) == (1, 1, 0, 0)
    assert device.states == ["good", "denied", "assumed_bad", "good"]
    (again,) = rows(*words)
    assert (again["denied"], again["allowed"]) == (0, 0)
    device.peer = "10.0.0.1:4791"
    assert rows(*words)[0]["skipped"] == 1
    device.own = "10.0.0.1"
    assert "at no address of the fabric" in str(ctl(*words).exception)


def test_a_denylist_reaches_those_who_can_be_told_whatever_the_others_do(home: Path, tmp_path: Path) -> None:
    """One is not of the fabric, one leaves during it, one sends nonsense, and one gets it after them."""
    stray, last = Pretended(), in_the_fabric(Pretended())
    words = a_push(tmp_path)
    nonsense = {"ok": True, "protocol": 1, "planes": []}
    with ExitStack() as stack:
        for number, answers in enumerate((stray, lambda _: None, lambda _: nonsense, last), 1):
            stack.enter_context(a_device(home, answers, f"{number}-0"))
        shown, as_json = ctl(*words), ctl(*words, "--json")
    assert last.states[1] == "denied" and "4-0: 1 denied" in shown.output
    for done in (shown, as_json):
        assert done.exit_code == 3
        assert all(
            words in done.output for words in ("device 1-0 is at no address", "2-0 closed the connection", "3-0")
        )
    told = json.loads(as_json.output)["devices"]
    assert [row["device"] for row in told if "error" in row] == ["1-0", "2-0", "3-0"] and len(told) == 4


def test_paths_that_could_not_be_denied_are_a_failure_of_the_push(device: Pretended, tmp_path: Path) -> None:
    in_the_fabric(device)
    failed = [{"qpn": 0x22, "ev": 1, "error": "it left"}]
    device.on_deny = lambda _: {"done": 0, "failed": failed}  # type: ignore[assignment,misc]
    done = ctl(*a_push(tmp_path))
    assert done.output.endswith("left alone, 1 failed\n") and done.exit_code == 3


@pytest.mark.parametrize(
    "answer, words",
    [
        (b"no json\n", "invalid JSON"),
        (b"[" * 200_000 + b"\n", "invalid JSON"),
        (b"7\n", "answers stats with 7"),
        (b'{"ok": "yes"}\n', "answers stats with"),
        (None, "closed the connection"),
        ({"ok": False, "error": "\x1b[31mred\nlines"}, r"refuses stats: \\x1b\[31mred\\nlines"),
    ],
)
def test_answers_that_are_none_are_one_sentence(home: Path, answer: object, words: str) -> None:
    with a_device(home, lambda _: answer), control.find_device() as node:  # type: ignore[arg-type, return-value]
        with pytest.raises((RemoteError, UsageError), match=words) as error:
            node.stats()
        assert "\n" not in str(error.value)


def test_lists_that_are_none_and_other_protocols_are_refused(home: Path) -> None:
    with a_device(home, lambda _: {"ok": True, "qps": 7, "protocol": 2}), control.find_device() as node:
        with pytest.raises(RemoteError, match="qps is 7, and no list"):
            node.queue_pairs()
        with pytest.raises(RemoteError, match="speaks protocol 2"):
            node.info()


def test_a_device_that_does_not_answer_is_given_up(home: Path) -> None:
    late = pytest.raises(RemoteError, match=r"does not answer info within 0\.1 s")
    with a_device(home, lambda _: b"") as path, control.DeviceClient(path, timeout_s=0.1) as node, late:
        node.info()


class Hesitant(Pretended):
    """Answers the first request only when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        if not self.asked:
            self.asked.append(request)
            self.may.wait(20)
        return super().__call__(request)


def test_an_answer_that_comes_late_is_not_taken_for_that_to_the_next_question(home: Path) -> None:
    device = Hesitant()
    with a_device(home, device) as path, control.DeviceClient(path, timeout_s=0.1) as node:
        with pytest.raises(control.DeviceTimeout, match="does not answer port"):
            node.set_port(0, False)
        device.may.set()
        node._timeout_s = 20.0
        assert node.info()["kind"] == "verbs" and "planes" in node.stats()
        assert len(node.queue_pairs()) == 1


def test_an_answer_that_is_too_long_is_the_end_of_that_answer_only(
    home: Path, device: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    with control.find_device() as node:
        monkeypatch.setattr(client, "MAX_BYTES", 100)
        with pytest.raises(RemoteError, match="more than 100 bytes") as error:
            node.queue_pairs()
        assert "closed the connection" not in str(error.value)
        monkeypatch.undo()
        assert "planes" in node.stats() and "evs" in node.queue_pairs()[0]


def test_events_are_told_once_even_if_a_device_was_silent_meanwhile(home: Path, device: Pretended) -> None:
    device.tell("ev_state")
    with control.find_device() as node:
        assert len(node.events().events) == 1
        node._hang_up()
        assert node.events().events == []
        node.close()
        with pytest.raises(UsageError, match="was closed"):
            node.events()


def test_a_batch_that_is_longer_than_a_request_goes_in_several(device: Pretended) -> None:
    with control.find_device() as node:
        done = node.deny(list(range(12_000)))
        assert (done.done, len(done.failed), done.failed[-1].ev) == (4, 11_996, 11_999)
        assert len(device.asked) == 3
        stopped = node.allow([*range(4), *range(12_000)], stop=True)
        assert (stopped.done, [one.ev for one in stopped.failed], len(device.asked)) == (8, [4], 4)


def test_a_request_that_is_too_long_is_refused_here(device: Pretended) -> None:
    with control.find_device() as node:
        with pytest.raises(UsageError, match=r"profile_add has 80,\d{3} bytes, and a device takes 65,536 at most"):
            control.Profiles(node).add("ev", mode="x" * 80_000)
        nested: list[Any] = []
        for _ in range(100_000):
            nested = [nested]
        with pytest.raises(UsageError, match="nested too deep"):
            control.Profiles(node).add("ev", fields=nested)
        assert not device.asked and "planes" in node.stats()


def test_without_devices_there_is_one_clear_sentence(home: Path) -> None:
    assert ctl("devices").output == "no device is running\n" and rows("devices") == []
    for words in (["planes"], ["planes", "-d", "99-0"], ["push", "x", "--fabric", "y"]):
        error = ctl(*words).exception
        assert isinstance(error, MrcError) and "\n" not in str(error)
    with pytest.raises(UsageError, match=f"no device of yours is running: none is in {home}"):
        control.find_device()


def test_what_a_killed_process_left_is_passed_over_and_several_are_named(home: Path, device: Pretended) -> None:
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stale.bind(str(home / "77-0.sock"))
    stale.close()
    assert [node.name for node in control.devices()] == [f"{os.getpid()}-0"]
    with pytest.raises(UsageError, match="77-0 cannot be queried"):
        control.find_device("77-0")
    with pytest.raises(UsageError, match=rf"no device is called 78; there are 77-0, {os.getpid()}-0"):
        control.find_device("78")
    with a_device(home, device, "99-1"), pytest.raises(UsageError, match=rf"are running: 99-1, {os.getpid()}-0"):
        control.find_device()


def test_a_folder_that_others_may_write_to_is_not_looked_into(home: Path, device: Pretended) -> None:
    home.chmod(0o777)
    with pytest.raises(UsageError, match="no folder of this user's alone"):
        control.devices()


def test_a_door_at_which_too_many_wait_is_silence_and_no_end(tmp_path: Path) -> None:
    """A stopped process accepts no connection, and its queue is short; it may go on yet."""
    path = tmp_path / "1-0.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        node = control.DeviceClient(path, timeout_s=0.2)
        for _ in range(6):
            with pytest.raises(control.DeviceTimeout):
                node.ask("info")
        node.close()
