"""Several ranks in one process: a device and a thread for each."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from softmrc.collectives import Block, DirectoryStore, DType, Group

PLANES = ["127.0.0.1", "127.0.0.2"]
TIMEOUT_S = 20.0


def listed(store: Any, name: str = "group") -> list[dict[str, Any]]:
    """What each rank of a group says of itself, as rank 0 has listed it last; records may carry a MAC."""
    nonce = store.get(f"softmrc/{name}/nonce").decode().split(" ")[-1]
    text = store.get(f"softmrc/{name}/record/{nonce}/all").decode()
    _, *records = json.loads(text[text.index("[") :])
    return [json.loads(record[record.index("{") :]) for record in records]


class Ranks:
    """A group of `size`, all ranks here."""

    def __init__(self, size: int, **settings: Any) -> None:
        self.size = size
        self._pool = ThreadPoolExecutor(size)
        self._folder = tempfile.TemporaryDirectory()
        self.store = store = DirectoryStore(self._folder.name)
        settings = {"planes": PLANES, "timeout_s": TIMEOUT_S, **settings}
        joining = [self._pool.submit(Group.join, store, rank, size, **settings) for rank in range(size)]
        try:
            self.groups: list[Group] = [future.result(TIMEOUT_S + 10) for future in joining]
        except BaseException:
            self._pool.shutdown()  # ranks that still join write to the folder
            self._folder.cleanup()
            raise

    def __call__(self, fn: Callable[[Group], Any]) -> list[Any]:
        """`fn(group)` on every rank at once; what each returned, or raised."""
        futures = [self._pool.submit(fn, group) for group in self.groups]
        results = []
        for future in futures:
            try:
                results.append(future.result(60))
            except Exception as error:
                results.append(error)
        return results

    def close(self) -> None:
        self(lambda group: group.close())
        self._pool.shutdown()
        self._folder.cleanup()


@contextmanager
def ranks(size: int, **settings: Any) -> Iterator[Ranks]:
    """A fresh group, closed at the end."""
    made = Ranks(size, **settings)
    try:
        yield made
    finally:
        made.close()


def values_of(results: list[Any]) -> list[Any]:
    """The results, or the first exception among them."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


# bfloat16 has no NumPy type: it is carried as 16-bit words, and computed with as float32.
BFLOAT16 = "bfloat16"
DTYPES = [BFLOAT16 if dtype == DType.BFLOAT16 else dtype.name.lower() for dtype in DType]
FLOATS = ["float32", "float64", "float16", BFLOAT16]


def storage(dtype: str) -> np.dtype:
    return np.dtype(np.uint16 if dtype == BFLOAT16 else dtype)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 to bfloat16 words, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bfloat16(words: np.ndarray) -> np.ndarray:
    return (words.astype(np.uint32) << 16).view(np.float32)


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers as an array of this type."""
    return to_bfloat16(values) if dtype == BFLOAT16 else values.astype(dtype)


def numbers(array: np.ndarray, dtype: str) -> np.ndarray:
    return from_bfloat16(array) if dtype == BFLOAT16 else array


def block(array: np.ndarray, dtype: str) -> Block:
    return Block(array.ctypes.data, array.size, DType[dtype.upper()], array)
