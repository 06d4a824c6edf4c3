"""Command groups that import a command when it is first used.

Importing all commands takes most of a second. A group therefore has a table: each command's name, module, attribute and
help line. `--help` of the group prints the help lines without importing the commands. A help line equals the first
paragraph of the command's own help; a test compares the two.
"""

from __future__ import annotations

import copy
import importlib
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import typer

from softmrc.cli.help import HelpCommand, HelpGroup, tidy, with_metavars
from softmrc.cli.usage_errors import shown

BENCH = "softmrc-bench"


class LazyCommand(NamedTuple):
    """A row of the table: a command or a subgroup that is not imported yet."""

    name: str
    module: str
    attribute: str  # a function or a typer.Typer
    help: str
    panel: str = "Commands"  # where the group's help lists it
    distribution: str = ""  # the one that the module comes with, where that is not softmrc

    def load(self) -> Any:
        """Import the command and convert it to a Click command."""
        with _default_sigint(), needing(self.name, self.distribution):
            found = getattr(importlib.import_module(self.module), self.attribute)
        holder = typer.Typer(add_completion=False)
        holder.callback()(lambda: None)  # without a callback, Typer makes no group for a single command
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=self.name)
        else:
            holder.command(self.name)(found)
        tidy(holder)
        group: Any = typer.main.get_command(holder)
        return with_metavars(group.commands[self.name])


@contextmanager
def needing(command: str, distribution: str) -> Iterator[None]:
    """Exit with 2 and a line that says what to install, where an import needs a distribution that is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not distribution or error.name != distribution.replace("-", "_"):
            raise
        where = "from a clone: pip install ./benchmarks"
        print(f"softmrc: {command} needs {distribution}: pip install {distribution} ({where})", file=sys.stderr)
        raise SystemExit(2) from None


@contextmanager
def _default_sigint() -> Iterator[None]:
    """Let SIGINT kill the process during an import, as `softmrc.__main__` does while it imports `softmrc.cli`. A
    KeyboardInterrupt could be raised in a weak reference's callback, where Python prints it and goes on."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Commands(MutableMapping[str, Any]):
    """The commands of a group, by name. Looking a command up imports it; iterating over the names does not."""

    def __init__(self, loaded: Mapping[str, Any], table: Sequence[LazyCommand] = ()) -> None:
        self._table = {entry.name: entry for entry in table}
        self._all: dict[str, Any] = {**loaded, **self._table}

    def __getitem__(self, name: str) -> Any:
        found = self._all[name]
        if isinstance(found, LazyCommand):
            found = self._all[name] = found.load()
        return found

    def __setitem__(self, name: str, command: Any) -> None:
        self._all[name] = command

    def __delitem__(self, name: str) -> None:
        del self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, name: object) -> bool:
        return name in self._all

    def listed(self) -> Commands:
        """For what needs names and help lines only: what is not imported is a placeholder with these."""
        return Commands({name: self._shown(name, one) for name, one in self._all.items()})

    def _shown(self, name: str, one: Any) -> Any:
        entry = self._table.get(name)
        return one if entry is None else HelpCommand(name, help=entry.help, rich_help_panel=entry.panel)


def group_of(*table: LazyCommand) -> type[HelpGroup]:
    """A `cls` for typer.Typer. The commands of the table follow those that are registered in the usual way."""

    class Group(HelpGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands = self._table = Commands(self.commands, table)

        def make_context(self, *args: Any, **extra: Any) -> Any:
            with shown(list):
                return super().make_context(*args, **extra)

        def invoke(self, ctx: Any) -> Any:
            with shown(list):
                return super().invoke(ctx)

        def list_commands(self, ctx: Any) -> list[str]:
            return list(self.commands)

        def _listed(self) -> Any:
            listed: Any = copy.copy(self)
            listed.commands = self._table.listed()
            return listed

        def format_help(self, ctx: Any, formatter: Any) -> None:
            super(Group, self._listed()).format_help(ctx, formatter)

        def shell_complete(self, ctx: Any, incomplete: str) -> Any:
            ctx.command = self._listed()
            return super(Group, ctx.command).shell_complete(ctx, incomplete)

    return Group
