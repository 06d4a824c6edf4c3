"""Groups whose packets are sealed: keys come from what ranks say in the store, and from the secret."""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import ranks, values_of

from softmrc import _core
from softmrc.collectives import CollectiveError, DirectoryStore, Group
from softmrc.config import DeviceConfig
from softmrc.errors import ConfigError

pytestmark = pytest.mark.skipif(not _core.can_seal(), reason="built without sealing")

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


class Seen:
    """A store that shows some ranks something else than was said."""

    def __init__(self, store: Any, change: Any = None) -> None:
        self._store, self._change = store, change
        self.said: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self.said[key] = value
        self._store.set(key, value)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self._store.wait(keys, timeout)

    def get(self, key: str) -> bytes:
        found: bytes = self._store.get(key)
        return self._change(found) if self._change and "/says/1" in key else found


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
            assert isinstance(error, CollectiveError) and "sealed" in str(error) and "set them alike" in str(error), (
                error
            )


def words_changed(change: Any) -> Any:
    def changed(data: bytes) -> bytes:
        token, _, text = data.decode().partition(" ")
        said = json.loads(text)
        change(said)
        return f"{token} {json.dumps(said)}".encode()

    return changed


def without_proof(said: dict[str, Any]) -> None:
    words = json.loads(said.pop("words"))
    said.pop("proof")
    said.update(words, is_proved=True)


def with_another_share(said: dict[str, Any]) -> None:
    words = json.loads(said["words"])
    words["seal"]["share"] = _core.x25519_public(bytes(range(32))).hex()
    said["words"] = json.dumps(words)


@pytest.mark.parametrize("change", [without_proof, with_another_share, lambda said: said.update(proof="0" * 64)])
def test_who_writes_to_the_store_without_the_secret_is_refused(change: Any) -> None:
    first, _ = outcomes([{"seal": "on"}, {"seal": "on"}], words_changed(change))
    assert isinstance(first, CollectiveError)
    assert "does not know the secret" in str(first) or "a proof of them" in str(first), first


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
    assert b"share" in held and len(keys) >= 4, "two queue pairs on each strand, a key for each direction"
    assert b"what all ranks know" not in held and not any(key.encode() in held for key in keys)
