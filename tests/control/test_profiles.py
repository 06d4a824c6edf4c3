"""Profiles that a controller lays down in real devices: their states, who uses them, and what queue pairs get."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from softmrc.cli import app
from softmrc.collectives import DirectoryStore, Group
from softmrc.config import EvProfile
from softmrc.device import Device, QueuePair
from softmrc.engine import EventType, EvState
from softmrc.errors import ConfigError, UsageError
from softmrc.ops import control

PLANES = ["127.0.0.1", "127.0.0.2"]
ENTRIES = [{"value": 50_000 + i, "plane": i % 2} for i in range(8)]


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("SOFTMRC_CONTROL", raising=False)
    with Device(PLANES, lanes=2, sockets_per_plane=2) as made:
        yield made


@pytest.fixture
def node(device: Device) -> Iterator[control.DeviceClient]:
    with control.DeviceClient(Path(device.control)) as made:
        yield made


@pytest.fixture
def laid(node: control.DeviceClient) -> control.Profiles:
    return control.Profiles(node)


def online(laid: control.Profiles, kind: str, **settings: Any) -> int:
    number = laid.add(kind, **settings)["number"]
    laid.move(number, "offline")
    laid.move(number, "online")
    return number


def listed(laid: control.Profiles, **more: Any) -> int:
    return online(laid, "ev", mode="explicit", count=8, entries=ENTRIES, **more)


def a_pair(device: Device, **profiles: Any) -> QueuePair:
    pair = device.create_qp(device.create_cq())
    pair.init(**profiles)
    return pair


def join(pair: QueuePair, other: Device) -> None:
    """To RTS, with a peer."""
    far = a_pair(other)
    pair.rtr(pair.device.add_peer(far.reached_at), dest_qpn=far.qpn, first_psn=far.first_psn)
    pair.rts()


def values_of(pair: QueuePair, *states: EvState) -> set[int]:
    evs = pair.evs()
    return {int(one["value"]) for one in evs if not states or EvState(int(one["state"])) in states}


# spec: profile-states profile-busy
@pytest.mark.parametrize("seed", range(20))
def test_a_profile_goes_one_step_at_a_time_and_what_is_used_stays(
    device: Device, laid: control.Profiles, seed: int
) -> None:
    """Random orders against a model of the states; whatever is refused changes nothing."""
    rng = random.Random(seed)
    kind = rng.choice(["ev", "cc"])
    number, state, pairs, to_all = laid.add(kind)["number"], 0, [], False
    names = ("init", "offline", "online")
    for _ in range(60):
        act = rng.choice(["move", "move", "move", "set", "use", "end", "give", "own"])
        before = laid.find(number)
        assert (before["state"], len(before["queue_pairs"]), before["to_all"]) == (names[state], len(pairs), to_all)
        if act == "move":
            to = rng.randrange(3)
            is_free = state != 2 or (not pairs and not to_all)
            if abs(to - state) == 1 and is_free:
                laid.move(number, names[to])
                state = to
            else:
                with pytest.raises(UsageError):
                    laid.move(number, names[to])
                assert laid.find(number) == before
        elif act == "set":
            changes = (
                {"spray_quantum": rng.randint(1, 64)} if kind == "ev" else {"rate_bps": rng.randint(10**9, 10**10)}
            )
            if state == 0:
                assert laid.set(number, **changes).items() >= changes.items()
            else:
                with pytest.raises(UsageError, match="must be init, to be changed"):
                    laid.set(number, **changes)
        elif act == "use" and len(pairs) < 4:
            asked = {f"{kind}_profile": number}
            if state == 2:
                pairs.append(a_pair(device, **asked))
            else:
                with pytest.raises(UsageError, match="a profile that is online"):
                    a_pair(device, **asked)
        elif act == "end" and pairs:
            pairs.pop(rng.randrange(len(pairs))).destroy()
        elif act == "give":
            if state == 2:
                laid.give_to_all(number)
                to_all = True
            else:
                with pytest.raises(UsageError):
                    laid.give_to_all(number)
        elif act == "own":
            laid.give_own(kind)
            to_all = False


def test_queue_pairs_have_what_their_profile_says(
    device: Device, node: control.DeviceClient, laid: control.Profiles
) -> None:
    number = listed(laid)
    control_number = online(laid, "cc", algorithm="fixed_window", window_bytes=123_456)
    pair = a_pair(device, ev_profile=number, cc_profile=control_number)
    assert values_of(pair) == {one["value"] for one in ENTRIES}
    with Device(["127.0.0.3", "127.0.0.4"]) as other:
        join(pair, other)
        (row,) = node.queue_pairs(pair.qpn)
    assert (row["ev_profile"], row["cc_profile"], row["window_bytes"]) == (number, control_number, 123_456)
    plain, own = a_pair(device), a_pair(device, ev_profile=EvProfile(count=4))
    # Separate EVs are random: one may be in the profile by chance, all of them cannot.
    assert not values_of(plain) <= values_of(pair) and len(own.evs()) == 4
    laid.give_to_all(number)
    assert values_of(a_pair(device)) == values_of(pair)
    assert len(a_pair(device, ev_profile=EvProfile(count=4)).evs()) == 4, "who brings its own keeps it"
    laid.give_own("ev")
    assert not values_of(a_pair(device)) <= values_of(pair)
    for wrong in (True, 0, -1, "1", 1 << 40):
        with pytest.raises(ConfigError, match="the number of a controller's"):
            a_pair(device, ev_profile=wrong)
    with pytest.raises(ConfigError, match="must be the number of an EV profile"):
        a_pair(device, ev_profile=control_number)


def test_what_a_profile_denies_is_denied_to_all_who_use_it_now_and_later(
    device: Device, node: control.DeviceClient, laid: control.Profiles
) -> None:
    number = listed(laid)
    early = [a_pair(device, ev_profile=number) for _ in range(3)]
    other = a_pair(device)
    done = node.deny([1, 99, 5], profile=number)
    assert (done.done, [(one.profile, one.ev) for one in done.failed]) == (2, [(number, 99)])
    wanted = {ENTRIES[1]["value"], ENTRIES[5]["value"]}
    for pair in [*early, a_pair(device, ev_profile=number)]:
        assert values_of(pair, EvState.DENIED) == wanted
    assert not values_of(other, EvState.DENIED)
    assert [one["ev"] for one in laid.find(number)["entries"] if one["state"] == "denied"] == [1, 5]
    stopped = node.allow([5, 99, 1], profile=number, stop=True)
    assert (stopped.done, [one.ev for one in stopped.failed]) == (1, [99])
    assert all(values_of(pair, EvState.DENIED) == {ENTRIES[1]["value"]} for pair in early)


def test_a_listed_path_is_replaced_for_those_to_come_or_for_all(
    device: Device, node: control.DeviceClient, laid: control.Profiles
) -> None:
    number = listed(laid)
    early = a_pair(device, ev_profile=number)
    node.replace(None, 2, 60_002, profile=number)
    assert 60_002 not in values_of(early) and 60_002 in values_of(a_pair(device, ev_profile=number))
    node.replace(None, 3, 60_003, profile=number, all_copies=True)
    assert 60_003 in values_of(early) and ENTRIES[3]["value"] not in values_of(early)
    node.deny([3], profile=number)
    assert values_of(early, EvState.DENIED) == {60_003}, "it is known by what it is now"
    for place, value, words in ((99, 1, "below 8"), (1, "ab" * 32, "of the kind that the list has")):
        with pytest.raises(UsageError, match=words):
            node.replace(None, place, value, profile=number)


def test_a_format_is_busy_while_profiles_are_made_of_it(laid: control.Profiles) -> None:
    shape = laid.add("format", format="stev", widths=[10, 8, 4])["number"]
    fields = [{"width": 10, "mask": 0x3FF, "max": 0x3FF}, {"width": 8, "mask": 0xF, "max": 15}]
    made = laid.add("ev", mode="generated", count=16, format_profile=shape, fields=fields)["number"]
    with pytest.raises(UsageError, match=r"`format_profile`: must be a profile that is online .got '1, which is init'"):
        laid.move(made, "offline")
    laid.move(shape, "offline")
    laid.move(shape, "online")
    laid.move(made, "offline")
    with pytest.raises(UsageError, match=f"busy, the format of profile {made}"):
        laid.move(shape, "offline")
    laid.move(made, "init")
    laid.move(shape, "offline")
    with pytest.raises(UsageError, match="init, to be removed"):
        laid.remove(shape)
    laid.move(shape, "init")
    laid.remove(shape)
    with pytest.raises(UsageError, match="the number of a profile of this device"):
        laid.move(made, "offline")


@pytest.mark.parametrize(
    "kind, settings, words",
    [
        ("ev", {"count": 0}, "`count`: must be 1 to 1024 (got 0)"),
        ("ev", {"mode": "wild"}, '`mode`: must be automatic, explicit, generated (got "wild")'),
        ("ev", {"kind": 3}, "`kind`: no such setting of this profile"),
        ("ev", {"cuont": 3}, "`cuont`: no such setting of this profile. Its settings: mode, count"),
        ("ev", {"entries": 7}, "`entries`: must be a list (got 7)"),
        ("ev", {"entries": [{"value": 1}]}, "`plane`: must be 0 to"),
        ("ev", {"entries": [7]}, "`value`: must be"),
        ("ev", {"events": ["sick"]}, "good, skip, assumed_bad, denied"),
        ("cc", {"rate_bps": -1}, "`rate_bps`: must be a whole number (got -1)"),
        ("cc", {"base_rtt_us": "soon"}, '`base_rtt_us`: must be a number (got "soon")'),
        ("format", {"widths": [0.5]}, "`widths`: must be a whole number (got 0.5)"),
        ("soup", {}, '`kind`: must be format, ev, cc (got "soup")'),
    ],
)
def test_settings_that_will_not_do_are_refused_and_nothing_is_laid_down(
    laid: control.Profiles, kind: str, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError) as error:
        laid.add(kind, **settings)
    assert words in str(error.value) and laid.all() == []


@pytest.mark.parametrize(
    "kind, settings, words",
    [
        ("ev", {"count": 3}, "`count`: must be a multiple of the 2 ports (got 3)"),
        ("ev", {"mode": "explicit", "count": 8}, "entries"),
        ("ev", {"mode": "generated"}, "at least one with mode GENERATED"),
        ("ev", {"mode": "explicit", "format": "srv6", "count": 2}, "this device sends no SRv6 packets"),
        ("format", {"format": "udp", "widths": [10, 10]}, "1 to 16 bits in all"),
        ("cc", {"algorithm": "hope"}, "`algorithm`: must be"),
    ],
)
def test_what_is_wrong_as_a_whole_stays_in_init(
    laid: control.Profiles, kind: str, settings: dict[str, Any], words: str
) -> None:
    number = laid.add(kind, **settings)["number"]
    with pytest.raises(UsageError) as error:
        laid.move(number, "offline")
    assert words in str(error.value) and laid.find(number)["state"] == "init"


def test_events_of_paths_are_told_as_the_profile_wants(
    device: Device, node: control.DeviceClient, laid: control.Profiles
) -> None:
    loud, quiet = listed(laid, events=["good"]), listed(laid, events=["assumed_bad"])
    pairs = {number: a_pair(device, ev_profile=number) for number in (loud, quiet)}
    with Device(["127.0.0.3", "127.0.0.4"]) as other:
        for number, pair in pairs.items():
            join(pair, other)
            node.deny([0], profile=number)
            node.allow([0], profile=number)  # which is GOOD again, and that is an event
        happened: set[int] = set()
        end = time.monotonic() + 20
        while happened != {pair.qpn for pair in pairs.values()} and time.monotonic() < end:
            happened |= {event.qpn for event in device.poll_events() if event.type == EventType.ev_state}
            time.sleep(0.01)
        assert len(happened) == 2, "a program hears of all"
        assert {event["qpn"] for event in node.events(("ev_state",)).events} == {pairs[loud].qpn}


def test_the_command(device: Device, laid: control.Profiles) -> None:
    def ctl(*words: str) -> Any:
        name = Path(device.control).stem
        return CliRunner().invoke(app, ["ctl", "profile", *words, "--device", name])

    entries = json.dumps(ENTRIES)

    def profile(*words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ctl(*words, "--json").output)["profile"]
        return found

    made = profile("add", "ev", "mode=explicit", "count=8", f"entries={entries}")
    number = str(made["number"])
    assert made["state"] == "init" and made["mode"] == "explicit" and len(made["entries"]) == 8
    assert profile("set", number, "spares=0", "skips_congested=false")["skips_congested"] is False
    for to in ("offline", "online"):
        assert profile("state", number, to)["state"] == to
    assert ctl("give", number).exit_code == 0 and laid.find(int(number))["to_all"]
    assert "online" in ctl("list").output and "8 of them" in ctl("list", number).output
    assert "busy, what queue pairs get" in str(ctl("state", number, "offline").exception)
    assert ctl("give", "--own", "ev").exit_code == 0
    for to in ("offline", "init"):
        assert ctl("state", number, to).exit_code == 0
    assert ctl("remove", number).output == f"profile {number} removed\n" and laid.all() == []
    deep = "fields=" + "[" * 60_000
    for wrong in (["add", "ev", "count"], ["give"], ["give", "1", "--own", "ev"], ["add", "ev", deep]):
        error = ctl(*wrong).exception
        assert isinstance(error, ConfigError) and len(str(error)) < 200


@pytest.mark.parametrize("seed", range(4))
def test_ranks_that_connect_later_get_what_is_given_to_all(
    device: Device, node: control.DeviceClient, laid: control.Profiles, tmp_path: Path, seed: int
) -> None:
    """Their queue pairs are made in a lane, when one of them first speaks; and are users of it like any other."""
    rng = random.Random(seed)
    denied = rng.randrange(len(ENTRIES))
    numbers = [online(laid, "cc"), listed(laid)]
    node.deny([denied], profile=numbers[1])
    for number in rng.sample(numbers, 2):
        laid.give_to_all(number)
    with Device(PLANES, lanes=2) as other, ThreadPoolExecutor(2) as pool:
        devices, store = (device, other), DirectoryStore(tmp_path / "store")
        groups = list(pool.map(lambda rank: Group.join(store, rank, 2, device=devices[rank]), range(2)))
        list(pool.map(lambda group: group.barrier().wait(), groups))
        used = [pair for pairs in groups[0].pairs[1] for pair in (pairs.messages, pairs.bulk)]
        assert used
        for number in numbers:
            assert set(laid.find(number)["queue_pairs"]) == {pair.qpn for pair in used}
        for pair in used:
            assert values_of(pair) == {one["value"] for one in ENTRIES}
            assert values_of(pair, EvState.DENIED) == {ENTRIES[denied]["value"]}
        list(pool.map(lambda group: group.close(), groups))
        assert not any(laid.find(number)["queue_pairs"] for number in numbers)


def test_a_list_of_both_kinds_of_values_is_refused(laid: control.Profiles) -> None:
    """Bytes are in a separate table, in which a place without them would be foreign memory."""
    mixed = [{"value": "ab" * 32, "plane": 0}, *({"value": i, "plane": 0} for i in range(60))]
    with pytest.raises(UsageError, match="all of them bytes, or all of them numbers"):
        laid.add("ev", mode="explicit", format="srv6", entries=mixed)
    number = laid.add("ev", mode="explicit", format="srv6", entries=mixed[:1])["number"]
    with pytest.raises(UsageError, match="all of them bytes, or all of them numbers"):
        laid.set(number, entries=mixed)
    assert len(laid.find(number)["entries"]) == 1
