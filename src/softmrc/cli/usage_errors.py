"""Errors of the command line, in the one form that all errors have: "`--planes`: must be an integer (got 'x'). Hint".

The messages of Click and Typer differ from one version to the next and have boxes around them. Options
and arguments are named as they are typed. Imports no rich.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand

from softmrc.cli.exit_codes import USAGE
from softmrc.errors import MISSING, ConfigError, did_you_mean, on_terminal

UsageError: Any = typer.BadParameter.__mro__[1]  # Typer has a copy of click in some versions
NUMBER = r"(-?[\d.]+)"
WORDS: tuple[tuple[str, str], ...] = (  # what Typer says of a value, and what is said here
    (r"Input should be a valid integer.*|.* is not a valid integer( range)?\.?", "must be an integer"),
    (r"Input should be a valid number.*|.* is not a valid float( range)?\.?", "must be a number"),
    (
        rf"Input should be greater than or equal to {NUMBER}|.* is not in the range x>={NUMBER}\.?",
        "must be at least {}",
    ),
    (rf"Input should be less than or equal to {NUMBER}|.* is not in the range x<={NUMBER}\.?", "must be at most {}"),
    (rf".* is not in the range {NUMBER}<=x<={NUMBER}\.?", "must be {} to {}"),
    (r"Input should be (.*?)(?:, unable to .*)?", "must be {}"),
    (r".* is not one of (.*?)\.?", "must be one of {}"),
)
# What is wrong with the line as a whole: a pattern with the wrong word, and the problem.
LINES: tuple[tuple[str, str], ...] = (
    (r"No such command '?(.*?)'?\.(?: Did you mean.*)?", "no such command"),
    (r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)\.?", "unexpected argument"),
    (r"Option '?(.*?)'? requires an argument\.?", "needs a value"),
    (r"Option '?(.*?)'? does not take a value\.?", "takes no value"),
)


def typed_name(param: Any) -> str:
    """An option or an argument as the user types it: --seeds, SCENARIO."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper())
    return max((one for one in param.opts if one.startswith("-")), key=len, default=param.name)


def _names(param: Any) -> set[str]:
    return {param.name, *(one.lstrip("-").replace("-", "_") for one in param.opts)}


def sentence(error: Any, args: list[str]) -> str:
    """What is said of a usage error; `args` are those of the command that refuses them."""
    see = f"See `{error.ctx.command_path} --help`." if error.ctx else ""
    if type(error).__name__ == "NoSuchOption":
        return str(ConfigError(error.option_name, MISSING, "no such option", _close(error) or see))
    if isinstance(error, typer.BadParameter):
        return str(_of_parameter(error, args))
    for pattern, problem in LINES:
        if found := re.fullmatch(pattern, error.message, re.DOTALL):
            hint = _close(error, found[1]) if problem == "no such command" else ""
            return str(ConfigError(found[1], MISSING, problem, hint or see))
    return f"{error.message.rstrip('.')}. {see}"


def _close(error: Any, command_name: str = "") -> str:
    """The command or option that a wrong one resembles."""
    command = error.ctx.command if error.ctx else None
    if command_name:
        return did_you_mean(command_name, list(getattr(command, "commands", ())))
    known = [name[2:] for param in getattr(command, "params", ()) for name in param.opts if name.startswith("--")]
    return did_you_mean(error.option_name.lstrip("-"), known, "--")


def _of_parameter(error: Any, args: list[str]) -> ConfigError:
    param, hint = error.param, error.param_hint
    name = hint if isinstance(hint, str) else typed_name(param) if param is not None else "value"
    if type(error).__name__ == "MissingParameter":
        return ConfigError(name, MISSING, "is missing", f"See `{error.ctx.command_path} --help`." if error.ctx else "")
    problem = error.message
    for pattern, words in WORDS:
        if found := re.fullmatch(pattern, problem, re.DOTALL):
            problem = words.format(*(one for one in found.groups() if one is not None))
            break
    return ConfigError(name, _given(error, args), problem.rstrip("."))


def _given(error: Any, args: list[str]) -> object:
    """The text that was given for the parameter of an error."""
    try:
        values, _, _ = error.ctx.command.make_parser(error.ctx).parse_args(args=list(args))
        given = values.get(error.param.name, MISSING)
        return given[0] if isinstance(given, list) and len(given) == 1 else given
    except Exception:  # the value cannot be shown: the line is refused anyway
        return MISSING


@contextmanager
def shown(args: Callable[[], list[str]]) -> Iterator[None]:
    """Print a usage error in here, and exit with 2. Help that Typer prints because of missing arguments stays."""
    try:
        yield
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        print(f"softmrc: {on_terminal(sentence(error, args()))}", file=sys.stderr)
        raise typer.Exit(USAGE) from None


class Command(TyperCommand):
    """A command whose errors name options and arguments as they are typed."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        own = list(args)
        with shown(lambda: own):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        try:
            with shown(list):
                return super().invoke(ctx)
        except ConfigError as error:
            field = error.field.replace("-", "_")
            named = next((param for param in self.params if field in _names(param)), None)
            if error.where or named is None:
                raise
            raise error.replaced(field=typed_name(named)) from error
