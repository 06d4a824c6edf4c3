"""What the help of a command and docs/reference/cli.md say of it: its usage, arguments, options and an example."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from softmrc.cli.exit_codes import MEANS_NO, NO
from softmrc.cli.usage import EXAMPLES
from softmrc.cli.usage_errors import Command

HELP_NAMES = ["--help", "-h"]
# What an option takes, by its name: one name takes the same everywhere, unless a command says otherwise.
METAVARS = {
    "N": "seed seeds steps count limit workers cores threads size trials rounds port ev plane profile dscp nics-per-gpu"
    " ports-per-optic",
    "DURATION": "duration interval timeout",
    "FILE": "report output prices keep fabric denylist keys recording token-file",
    "RATE": "nic switch serdes",
    "ADDRESS,…": "planes",
    "HOST:PORT": "load",
    "ADDRESS:PORT": "listen",
    "ADDRESS": "host",
    "DEVICE": "device",
    "LAB": "lab",
    "SECRET": "secret",
    "GROUP": "group",
    "KEY=VALUE": "set",
    "SHARE": "loss",
    "local|ray": "runner",
}
METAVAR_OF = {f"--{name}": metavar for metavar, names in METAVARS.items() for name in names.split()}
Rows = list[tuple[str, str]]


def _text_of(command: Any, ctx: Any) -> str:
    from softmrc.cli.help_page import text_of  # rich is imported for help only

    return text_of(command, ctx)


class HelpCommand(Command):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_text_of(self, ctx))


class HelpGroup(TyperGroup):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_text_of(self, ctx))


def tidy(of: typer.Typer) -> None:
    """Give every command our help, and remove the line breaks of docstrings: a text wraps at the terminal's width."""
    for command in of.registered_commands:
        text = command.help or inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
        command.cls = HelpCommand
    for group in of.registered_groups:
        if group.typer_instance is not None:
            tidy(group.typer_instance)
            own = group.typer_instance.info.cls
            group.cls = own if isinstance(own, type) and issubclass(own, HelpGroup) else HelpGroup


def with_metavars(command: Any) -> Any:
    """Name what options and arguments take, here and in messages."""
    for each in getattr(command, "commands", {}).values() if isinstance(command, TyperGroup) else ():
        with_metavars(each)
    for param in command.params:
        if param.metavar is None and param.param_type_name == "argument":
            param.metavar = param.name.upper()
        elif param.metavar is None and not param.is_flag:
            param.metavar = next((METAVAR_OF[opt] for opt in param.opts if opt in METAVAR_OF), None)
    return command


def path_of(ctx: Any) -> str:
    """`ctl deny`, whatever the program is called."""
    names: list[str] = []
    while ctx.parent is not None:
        names.insert(0, ctx.info_name)
        ctx = ctx.parent
    return " ".join(names)


def usage_of(command: Any, path: str) -> str:
    """softmrc sim SCENARIO [OPTIONS]"""
    words = ["softmrc", path]
    if isinstance(command, TyperGroup):
        words.append("COMMAND")
    for param in command.params:
        if param.param_type_name == "argument":
            name = param.metavar + ("..." if param.nargs == -1 else "")
            words.append(name if param.required else f"[{name}]")
        elif param.required:
            words.append(f"{param.opts[0]} {param.metavar}")
    return " ".join(word for word in [*words, "[OPTIONS]"] if word)


def arguments_of(command: Any) -> Rows:
    found = [param for param in command.params if param.param_type_name == "argument" and not param.hidden]
    return [(param.metavar, param.help or "") for param in found]


def options_of(params: Iterable[Any]) -> Rows:
    """Each with its short name, what it takes, and its default."""
    found = []
    for param in params:
        if param.param_type_name != "option" or param.hidden:
            continue
        names = ", ".join(sorted(param.opts, key=len))
        negative = f" / {param.secondary_opts[0]}" if param.secondary_opts else ""
        takes = "" if param.is_flag or not param.metavar else f" {param.metavar}"
        found.append((names + negative + takes, " ".join([param.help or "", *_notes(param)]).strip()))
    return found


def _notes(param: Any) -> list[str]:
    if param.required:
        return ["[required]"]
    default = param.default
    if param.is_flag or not param.show_default or not isinstance(default, str | int | float | Path) or not default:
        return []
    return [f"[default: {default}]"]


def notes_of(path: str) -> Rows:
    """What follows the options: the example, and when the answer is no."""
    found = [("Example:", EXAMPLES[path])] if path in EXAMPLES else []
    return found + ([(f"Exit code {NO}:", f"{MEANS_NO[path]}.")] if path in MEANS_NO else [])


def commands_of(group: Any, ctx: Any) -> dict[str, Rows]:
    panels: dict[str, Rows] = {}
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if command is not None and not command.hidden:
            panel = getattr(command, "rich_help_panel", None)
            words = (command.help or "").split("\n\n")[0]
            panels.setdefault(panel if isinstance(panel, str) else "Commands", []).append((name, words))
    return panels
