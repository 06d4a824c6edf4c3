"""`softmrc ctl profile …`: formats of EVs, EV profiles and profiles of congestion control, laid down in a device."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from softmrc.cli.ctl import AsJson, Device, say_rows
from softmrc.cli.terminal import Grid
from softmrc.errors import ConfigError
from softmrc.ops import control

profile_app = typer.Typer(
    help="Profiles that queue pairs are given: formats, EVs, congestion control.", no_args_is_help=True
)
Number = Annotated[int, typer.Argument(min=1, help="As `ctl profile list` has it.")]
Settings = Annotated[list[str] | None, typer.Argument(help="NAME=VALUE; lists and objects as JSON.")]
_HIDDEN = ("number", "kind", "state", "to_all", "queue_pairs")


def _settings(words: list[str] | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in words or []:
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise ConfigError("setting", word, "NAME=VALUE")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text  # a word, as of mode=explicit
        except RecursionError:
            raise ConfigError(name, f"{text[:20]}…", "JSON that is not nested so deep") from None
    return found


def _show(as_json: bool, rows: list[dict[str, Any]]) -> None:
    def table() -> Any:
        shown = Grid("profile", "kind", "state", "queue pairs", "settings", folds="settings")
        for row in rows:
            said = ", ".join(f"{key}={_short(value)}" for key, value in row.items() if key not in _HIDDEN)
            used = f"{len(row['queue_pairs'])}{' and all' if row['to_all'] else ''}"
            shown.add_row(str(row["number"]), row["kind"], row["state"], used, said)
        return shown

    say_rows(as_json, rows, table)


def _short(value: Any) -> str:
    return f"{len(value)} of them" if isinstance(value, list) and len(value) > 4 else json.dumps(value)


@profile_app.command("list")
def show(
    number: Annotated[int | None, typer.Argument(min=1, help="One of them only.")] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """List profiles, their settings, and how many queue pairs use them."""
    with control.find_device(device) as node:
        laid = control.Profiles(node)
        _show(as_json, laid.all() if number is None else [laid.find(number)])


@profile_app.command("add")
def add(
    kind: Annotated[str, typer.Argument(help="format, ev or cc")],
    settings: Settings = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Add a profile, in INIT: `add ev count=64 mode=automatic`."""
    with control.find_device(device) as node:
        _show(as_json, [control.Profiles(node).add(kind, **_settings(settings))])


@profile_app.command("set")
def change(number: Number, settings: Settings = None, device: Device = None, as_json: AsJson = False) -> None:
    """Change settings of a profile in INIT: all of them, or none."""
    with control.find_device(device) as node:
        _show(as_json, [control.Profiles(node).set(number, **_settings(settings))])


@profile_app.command("state")
def state(
    number: Number,
    to: Annotated[str, typer.Argument(help="init, offline or online: one step on or back")],
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """INIT → OFFLINE, where it is validated as a whole; → ONLINE, where it can be used; and back, once it is unused."""
    with control.find_device(device) as node:
        _show(as_json, [control.Profiles(node).move(number, to)])


@profile_app.command("remove")
def remove(number: Number, device: Device = None) -> None:
    """Remove a profile that is in INIT."""
    with control.find_device(device) as node:
        control.Profiles(node).remove(number)
    print(f"profile {number} is gone")


@profile_app.command("give")
def give(
    number: Annotated[int | None, typer.Argument(min=1, help="An EV or CC profile that is ONLINE.")] = None,
    own: Annotated[str | None, typer.Option("--own", help="ev or cc: what the device has by itself, again.")] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Set the default profile of new queue pairs."""
    if (number is None) == (own is None):
        raise ConfigError("number", number, "the number of a profile, or --own")
    with control.find_device(device) as node:
        if number is not None:
            _show(as_json, [control.Profiles(node).give_to_all(number)])
        else:
            control.Profiles(node).give_own(str(own))
            print(f"queue pairs get the device's own {own} profile")
