"""Errors of a setting or of the machine, as torch's users expect them: they are `RuntimeError`s, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from softmrc.errors import ConfigError, DeviceError


class SettingError(ConfigError, RuntimeError):
    """A setting that this rank cannot join with."""


class MachineError(DeviceError, RuntimeError):
    """Something that this rank needs, and that its machine does not give."""


@contextmanager
def runtime_errors() -> Iterator[None]:
    """What is raised in here is a `RuntimeError`, and of the class that it was."""
    try:
        yield
    except ConfigError as error:
        if isinstance(error, RuntimeError):
            raise
        raise SettingError(error.field, error.value, error.problem, error.hint, error.where) from error
    except DeviceError as error:
        if isinstance(error, RuntimeError):
            raise
        raise MachineError(*error.args) from error
