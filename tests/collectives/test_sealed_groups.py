"""Groups whose packets are encrypted: keys come from what ranks say in the store, and from the secret."""

from __future__ import annotations

import ipaddress
import json
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ranks import listed, ranks, values_of

from softmrc import _core
from softmrc.collectives import CollectiveError, DirectoryStore, Group, rendezvous, store_rendezvous
from softmrc.collectives.rendezvous import GroupJoin
from softmrc.config import DeviceConfig
from softmrc.connection import keys as sealing
from softmrc.device import Device
from softmrc.errors import ConfigError
from udp.loopback import connect, drain, eventually

pytestmark = pytest.mark.skipif(not _core.can_seal(), reason="built without libcrypto")

SECRET, PLANES, PATIENCE_S = "SOFTMRC_SECRET", ["127.0.0.1", "127.0.0.2"], 60.0


@pytest.fixture(autouse=True)
def shared_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "what all ranks know")


def test_a_sealed_group_reduces() -> None:
    with ranks(3, device_config=DeviceConfig(seal="on", rekey_packets=50)) as group:

        def reduce(one: Group) -> Any:
            values = np.full(100_000, one.rank + 1, np.float32)
            one.all_reduce(values).wait()
            return values

        for found in values_of(group(reduce)):
            assert (found == 6).all()


@pytest.mark.parametrize(
    "seal, has_secret, leaves, count",
    [("auto", False, True, 1), ("off", False, True, 0), ("auto", False, False, 0), ("on", True, True, 0)],
)
def test_packets_that_leave_the_machine_unsealed_are_said_to_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    seal: str, has_secret: bool, leaves: bool, count: int,
) -> None:  # fmt: skip
    made = Device.__init__

    def made_elsewhere(self: Device, *given: Any, **more: Any) -> None:
        made(self, *given, **more)
        self.stays_here = not leaves

    monkeypatch.setattr(Device, "__init__", made_elsewhere)
    rendezvous._say_unsealed.cache_clear()
    if not has_secret:
        monkeypatch.delenv(SECRET)
    for _ in range(2):
        with ranks(2, device_config=DeviceConfig(seal=seal)):
            pass
    assert [one.levelname for one in caplog.records if "not encrypted" in one.message] == ["WARNING"] * count


def test_a_plain_queue_pair_goes_on_where_a_sealed_group_is_refused() -> None:  # spec: seal-agreed
    """To one peer all queue pairs are encrypted or none is; what works is not to be cut off."""
    with Device(PLANES, lanes=1, seal="on") as a, Device(PLANES, lanes=1, seal="on") as b:
        near, far = connect(a, b)
        source, target = a.register(bytearray(b"x" * 100)), b.register(bytearray(100), remote_write=True)

        def write() -> bool:
            near.post_write(source, 0, 100, remote_va=0, rkey=target.rkey)
            return [one.ok for one in drain(near.send_cq, 1, PATIENCE_S)] == [True]

        def use(rank: int) -> str:
            try:
                with Group.join(store, rank, 2, device=(a, b)[rank], timeout_s=PATIENCE_S) as group:
                    group.barrier().wait()
            except CollectiveError as error:
                return str(error)
            return ""

        assert write()
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
            store = DirectoryStore(folder)
            errors = list(pool.map(use, range(2)))
        assert all("cannot be reached" in error for error in errors), errors
        assert write()
        assert not any(row["keyless"] for device in (a, b) for row in device.planes())
        for qp in (near, far):
            qp.destroy()
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
            store = DirectoryStore(folder)
            assert list(pool.map(use, range(2))) == ["", ""], "without the plain one it works"


class Seen:
    """A store that shows some ranks something else than was said."""

    def __init__(self, store: Any, change: Any = None) -> None:
        self._store, self._change = store, change
        self.said: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self.said[key] = value
        self._store.set(key, value)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def get(self, key: str) -> bytes:
        found: bytes = self._store.get(key)
        return self._change(found) if self._change and "/record/" in key and key.endswith("/1") else found


def outcomes(settings: list[dict[str, Any]], change: Any = None, stores: list[Seen] | None = None) -> list[Any]:
    """What two ranks end with; the first sees what the second said through `change`."""
    stores = [] if stores is None else stores
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        stores += [Seen(DirectoryStore(folder), change), Seen(DirectoryStore(folder))]

        def live(rank: int) -> Any:
            try:
                group = Group.join(
                    stores[rank], rank, 2, planes=PLANES, timeout_s=8.0, device_config=DeviceConfig(**settings[rank])
                )
            except (CollectiveError, ConfigError) as error:
                return error
            group.close()
            return group

        return [future.result(PATIENCE_S) for future in [pool.submit(live, rank) for rank in range(2)]]


def test_a_mismatch_is_said_on_both_sides() -> None:  # spec: seal-agreed
    for first, second in (("on", "off"), ("off", "on")):
        for error in outcomes([{"seal": first}, {"seal": second}]):
            assert isinstance(error, CollectiveError), error
            assert "does not encrypt its packets" in str(error) and "set SOFTMRC_SECRET and `seal` alike" in str(error)


AWAY = ipaddress.ip_address("10.9.8.7")


def pretend(monkeypatch: pytest.MonkeyPatch, *leave: int) -> None:
    """As if planes of these ranks left the machine, for all that knows of them but the sockets."""
    offered, join, made, is_wanted = GroupJoin._offer, Group.join, Device.__init__, sealing.is_wanted
    here = threading.local()

    def joining(store: Any, rank: int, *given: Any, **more: Any) -> Group:
        here.leaves = rank in leave
        return join(store, rank, *given, **more)

    def made_there(self: Device, *given: Any, **more: Any) -> None:
        made(self, *given, **more)
        if here.leaves:
            self.stays_here = False

    def offer(self: GroupJoin, channels: Any) -> Any:
        found = offered(self, channels)
        for channel in found["channels"] if self.rank in leave and len(leave) < 2 else []:
            for number, plane in enumerate(channel["planes"]):
                plane["address"] = str(AWAY + number)
        return found

    def wanted(device: Any, has_secret: bool) -> bool:
        planes = [SimpleNamespace(address=AWAY)] if here.leaves else device.local_planes
        return is_wanted(SimpleNamespace(local_planes=planes, config=device.config), has_secret)

    monkeypatch.setattr(sealing, "is_wanted", wanted)
    monkeypatch.setattr(Group, "join", joining)
    monkeypatch.setattr(Device, "__init__", made_there)
    monkeypatch.setattr(GroupJoin, "_offer", offer)


def test_with_a_secret_all_that_leaves_the_machine_is_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 0, 1)
    for settings, is_encrypted in (({}, True), ({"seal": "auto"}, True), ({"seal": "off"}, False)):
        for group in outcomes([settings] * 2):
            assert isinstance(group, Group) and (group._meeting._share is not None) == is_encrypted, group


def test_a_build_without_encryption_joins_no_group_whose_packets_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "can_seal", lambda: False)
    assert all(isinstance(one, Group) for one in outcomes([{}] * 2)), "on loopback"
    pretend(monkeypatch, 0, 1)
    for error in outcomes([{}] * 2):
        assert isinstance(error, CollectiveError | ConfigError) and "libcrypto" in str(error), error
    assert all(isinstance(one, Group) for one in outcomes([{"seal": "off"}] * 2))


@pytest.mark.parametrize("leaves", [0, 1])
def test_a_rank_on_loopback_and_one_that_leaves_form_no_group(monkeypatch: pytest.MonkeyPatch, leaves: int) -> None:
    """One encrypts by default and the other does not; nor does it help if both say that they do not."""
    pretend(monkeypatch, leaves)
    for error in outcomes([{}] * 2):
        assert isinstance(error, CollectiveError) and "set SOFTMRC_SECRET and `seal` alike" in str(error), error
    monkeypatch.setattr(sealing, "is_wanted", lambda device, has_secret: False)
    for error in outcomes([{}] * 2):
        assert isinstance(error, CollectiveError) and "10.9.8.7, off this machine" in str(error), error


def without_proof(found: bytes) -> bytes:
    return found[found.index(b" ") + 1 :]


def with_another_proof(found: bytes) -> bytes:
    return b"proof:" + b"0" * 64 + b" " + without_proof(found)


def with_another_share(found: bytes) -> bytes:
    before, brace, text = found.decode().partition("{")
    info = json.loads(brace + text)
    info["offer"]["seal"]["share"] = _core.x25519_public(bytes(range(32))).hex()
    return f"{before}{json.dumps(info)}".encode()


@pytest.mark.parametrize("change", [without_proof, with_another_share, with_another_proof])
def test_who_writes_to_the_store_without_the_secret_is_refused(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_rendezvous, "UNPROVED_S", 0.3)
    first, _ = outcomes([{"seal": "on"}, {"seal": "on"}], change)
    assert isinstance(first, CollectiveError)
    assert "rank 1 is refused" in str(first) and "/record/" in str(first), first
    assert "the secret" in str(first) or "another secret" in str(first), first


def test_it_takes_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET)
    for error in outcomes([{"seal": "on"}] * 2):
        assert isinstance(error, ConfigError) and "a shared secret" in str(error)


def test_what_the_store_holds_makes_no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Shares alone: neither the secret nor any key is in it."""
    keylog = tmp_path / "keys.log"
    monkeypatch.setenv("SOFTMRC_KEYLOG", str(keylog))
    stores: list[Seen] = []
    assert all(isinstance(one, Group) for one in outcomes([{"seal": "on"}] * 2, stores=stores))
    keys = {line.split()[2] for line in keylog.read_text().splitlines()}
    held = b" ".join(value for store in stores for value in store.said.values())
    assert b"share" in held and len(keys) >= 4, "two queue pairs on each channel, a key for each direction"
    assert b"what all ranks know" not in held and not any(key.encode() in held for key in keys)


SEALED = DeviceConfig(seal="on")


def test_who_is_never_spoken_to_costs_nothing_under_seal_either() -> None:
    """Neighbours alone are met when ranks join; others are connected on first use, and key material
    is gone before."""
    with ranks(6, lanes=1, device_config=SEALED) as six:
        around = [sorted([(rank + 1) % 6, (rank - 1) % 6]) for rank in range(6)]
        assert eventually(lambda: [sorted(group.pairs) for group in six.groups] == around)
        assert all(group._meeting._share is not None and not group._meeting._share._roots for group in six.groups)
        for sender, receiver in ((0, 3), (4, 1)):
            found = np.zeros(3)
            work = six.groups[receiver].recv(found, sender)
            six.groups[sender].send(np.ones(3), receiver).wait()
            work.wait()
            assert found.tolist() == [1, 1, 1]
        assert [len(group.pairs) for group in six.groups] == [3, 3, 2, 3, 3, 2]
        assert all(plane["bad_seal"] == 0 for group in six.groups for plane in group.device.planes())


@pytest.mark.parametrize("pretended", [2, 3])
def test_who_has_not_the_keys_makes_nobody_speak(pretended: int) -> None:
    """A member that has not spoken yet: with the number that is kept for it, or for another, and with its own keys."""
    with ranks(6, lanes=1, device_config=SEALED) as six:
        victim, liar = six.groups[0], six.groups[2]
        assert eventually(lambda: sorted(victim.pairs) == [1, 5])
        first, stride = listed(six.store)[0]["offer"]["channels"][0]["pairs"]
        device = liar.device
        pair = device.create_qp(device.create_cq())
        pair.init()
        keys = _core.SealKeys(_core.faster_cipher(), bytes(range(32)), bytes(range(32, 64)))
        pair.rtr(
            device.add_peer(victim.device.reached_at(0)),
            dest_qpn=first + stride * 2 * pretended,
            first_psn=0,
            seal=keys,
        )
        pair.rts()
        pair.post_write(device.register(bytearray(64)), 0, 64, remote_va=0, rkey=0)
        assert eventually(lambda: sum(plane["bad_seal"] for plane in victim.device.planes()) > 0)
        assert sorted(victim.pairs) == [1, 5]
        pair.destroy()
        found = np.zeros(3)
        work = victim.recv(found, 2)
        liar.send(np.ones(3), 0).wait()
        work.wait()
        assert found.tolist() == [1, 1, 1]


def test_keys_of_a_group_that_was_left_are_gone() -> None:
    """Others of the same devices go on, and a new one has other keys."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(5) as pool:
        devices = [Device(PLANES, SEALED) for _ in range(5)]

        def join(rank: int, name: str) -> Group:
            return Group.join(DirectoryStore(folder), rank, 5, device=devices[rank], timeout_s=20.0, name=name, lanes=1)

        def kept_for_others() -> list[int]:
            return [device._native.expected_seal_count for device in devices]

        kept = list(pool.map(join, range(5), ["kept"] * 5))
        assert eventually(lambda: kept_for_others() == [2 * 2] * 5), "of two queue pairs to each that is no neighbour"
        for number in range(3):
            brief = list(pool.map(join, range(5), [str(number)] * 5))
            assert min(kept_for_others()) >= 2 * 2 * 2
            list(pool.map(lambda group: group.close(), brief))
        assert kept_for_others() == [2 * 2] * 5
        list(pool.map(lambda group: group.all_reduce(np.ones(3)).wait(), kept))
        list(pool.map(lambda group: group.close(), kept))
        assert kept_for_others() == [0] * 5
        for device in devices:
            device.close()
