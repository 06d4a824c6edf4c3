"""Files that a user names: reading, writing and creating them, with errors of one line."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

from softmrc.errors import MISSING, ConfigError, DeviceError

UNREADABLE = {
    errno.ENOENT: "no such file",
    errno.ENOTDIR: "no such file",
    errno.EISDIR: "must be a file, and is a directory",
    errno.EACCES: "cannot be read: permission denied",
}


def unreadable(field: str, path: Path, error: OSError | ValueError, hint: str = "") -> ConfigError:
    """What to raise where a file that the user named cannot be read."""
    number = getattr(error, "errno", None)
    why = UNREADABLE.get(number or 0) or f"cannot be read: {getattr(error, 'strerror', None) or error}"
    return ConfigError(field, str(path), why, hint)


def read_text(path: Path, field: str) -> str:
    """The text of a file; `field` is what the user calls it."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(field, path, error) from None
    except UnicodeDecodeError as error:
        raise ConfigError(field, str(path), f"must be UTF-8 text (byte {error.start} is not)") from None


def read_bytes(path: Path, field: str, most: int) -> bytes:
    """All bytes of a file up to a size limit. A single read would allocate the limit."""
    data = bytearray()
    try:
        with path.open("rb") as file:
            while len(data) <= most and (piece := file.read(1 << 18)):
                data += piece
    except (OSError, ValueError) as error:
        raise unreadable(field, path, error) from None
    if len(data) > most:
        raise ConfigError(field, str(path), f"must be at most {most >> 20} MiB long")
    return bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write into an existing folder: a mistyped name creates none."""
    try:
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a name with a zero in it
        raise cannot_write(path, error) from None


def check_place(path: Path | None) -> None:
    """Whether a file can be written there, asked before the work whose result it is."""
    try:
        if path is None or (path.exists() and not path.is_file() and not path.is_dir()):
            return  # a pipe or a device: to open one may change what it does
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()
    except (OSError, ValueError) as error:
        raise cannot_write(path, error) from None


def cannot_write(path: Path | None, error: OSError | ValueError) -> DeviceError:
    """What to raise where a file could not be written."""
    why = getattr(error, "strerror", None) or error
    if isinstance(error, FileNotFoundError) and path is not None:
        why = f"there is no folder {str(path.absolute().parent)!r}"
    return DeviceError(f"cannot write {str(path)!r}: {why}")


HANDED = re.compile(r"/dev/(stdin|stdout|stderr|fd/[0-9]+)|/proc/self/fd/[0-9]+")  # descriptors of this process
OTHERS = 0o077  # what a mode allows to others than the owner
OF_ALL = "others may open it, as any file of its file system"


def open_own(path: str, *, is_anew: bool, is_pipe_fine: bool = False) -> int:
    """A descriptor to write to, of a file that holds what other users are not to read, or to have put there: captures
    and keys. The file is made with mode 0600. One that is there must be this user's own regular file (or pipe), or a
    character device, and no symbolic link. With `is_anew` a file that others may open is replaced, since another
    process may have it open; otherwise it is refused. `core/udp/private_file.h` is the same for C++."""
    flags = os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC | (0 if is_anew else os.O_APPEND)
    flags |= 0 if is_pipe_fine else os.O_NONBLOCK
    if HANDED.fullmatch(path):
        handle = os.open(path, flags)
        try:
            if is_anew and stat.S_ISREG(os.fstat(handle).st_mode):
                os.ftruncate(handle, 0)
        except BaseException:
            os.close(handle)
            raise
        return handle
    with suppress(FileExistsError):
        return _made(path, flags)
    handle = _there(path, flags)
    try:
        about = os.fstat(handle)
        if wrong := _what_is_wrong(about, is_anew, is_pipe_fine):
            raise PermissionError(errno.EPERM, wrong)
        if not is_anew or not stat.S_ISREG(about.st_mode):
            return handle
        if not about.st_mode & OTHERS:
            os.ftruncate(handle, 0)
            return handle
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return _replaced(path, flags)


def _made(path: str, flags: int, name: str | None = None) -> int:
    """A new file at a path, renamed to its final name once no other user can open it."""
    handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if os.fstat(handle).st_mode & OTHERS:
            raise PermissionError(errno.EPERM, OF_ALL)
        if name is not None:
            os.rename(path, name)
    except BaseException:
        os.close(handle)
        with suppress(OSError):
            os.unlink(path)
        raise
    return handle


def _replaced(path: str, flags: int) -> int:
    """A new file that atomically replaces the old one; the old one stays if that fails."""
    try:
        return _made(f"{path}.{secrets.token_hex(4)}", flags, path)
    except OSError as error:
        if error.strerror == OF_ALL:
            raise
        words = f"others may open it, and it cannot be replaced ({error.strerror}): chmod 600 it first"
        raise OSError(error.errno, words) from None


def _there(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        words = {
            errno.ELOOP: "it is a symbolic link",
            errno.ENXIO: "it is no regular file",
        }  # ENXIO: a pipe without a reader
        if error.errno in words:
            raise PermissionError(errno.EPERM, words[error.errno]) from None
        raise


def _what_is_wrong(about: os.stat_result, is_anew: bool, is_pipe_fine: bool) -> str:
    if stat.S_ISCHR(about.st_mode):
        return ""
    if not stat.S_ISREG(about.st_mode) and not (is_pipe_fine and stat.S_ISFIFO(about.st_mode)):
        return "it is no regular file"
    if about.st_uid != os.geteuid():
        return "it is another user's"
    if about.st_mode & OTHERS and not is_anew:
        return "others may open it: chmod 600"
    return ""


_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.\-\s]+?)\s*\]\]?\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(r"\s*([\w.\-]+)\s*=")


def line_of(text: str, key: str) -> int | None:
    """The line of a TOML text on which a key (`fabric.hosts`, `faults.events[1].port.plane`) is set; if none is, that
    of the nearest table that it would be in."""
    wanted = key.split(".")
    section: list[str] = []
    counts: dict[tuple[str, ...], int] = {}
    best, found = 0, None
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            section = _entered(header[2].split("."), counts, is_list=header[1] == "[[")
            here = section
        elif assigned := _ASSIGNMENT.match(line):
            here = section + assigned[1].split(".")
        else:
            continue
        if len(here) > best and here == wanted[: len(here)]:
            best, found = len(here), number
    return found


def _entered(names: list[str], counts: dict[tuple[str, ...], int], is_list: bool) -> list[str]:
    """The path of a table: `[[compare]]` for the second time is `compare[1]`, and what follows lies in it."""
    path: list[str] = []
    for i, name in enumerate(names):
        place = (*path, name.strip())
        if is_list and i == len(names) - 1:
            counts[place] = counts.get(place, -1) + 1
        path.append(f"{name.strip()}[{counts[place]}]" if place in counts else name.strip())
    return path


def located(error: ConfigError, source: str, text: str) -> ConfigError:
    """The same error, with the file and the line."""
    line = line_of(text, error.field) if error.field else error.where.partition(":")[2]  # TOML has its own
    return error.replaced(where=f"{source}:{line}" if line else source)


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """The table that a text holds; `source` is where it is from."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also of a number with thousands of digits
        raise _invalid_toml(error, source) from None


_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def _invalid_toml(error: Exception, source: str) -> ConfigError:
    """With the line and the column in front, where tomllib says them at the end."""
    text = str(error)
    found = _PLACE.search(text)
    where = ":".join(filter(None, (source, *(found.groups() if found else ()))))
    words = text[: found.start()] if found else text
    return ConfigError("", MISSING, f"invalid TOML: {words[:1].lower()}{words[1:]}", where=where)


def runtime_folder() -> Path:
    """Where this user's processes keep the control sockets of their devices, and recordings."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.path.isdir(runtime) and os.stat(runtime).st_uid == os.geteuid():
        return Path(runtime) / "softmrc"
    return Path(f"/tmp/softmrc-{os.geteuid()}")
