"""`softmrc ctl profile …`: formats of EVs, EV profiles and profiles of congestion control, laid down in a device."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from softmrc.cli.ctl import Row, print_rows
from softmrc.cli.options import AsJson, DeviceName, print_json
from softmrc.cli.terminal import Grid, terminal
from softmrc.errors import MISSING, ConfigError
from softmrc.ops import control

profile_app = typer.Typer(
    help="Manage profiles of queue pairs: formats, EVs, congestion control.", no_args_is_help=True
)
Number = Annotated[int, typer.Argument(min=1, metavar="N", help="As `ctl profile list` shows it.")]
Settings = Annotated[
    list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Settings; lists and objects as JSON. Repeatable.")
]
_HIDDEN = ("number", "kind", "state", "to_all", "queue_pairs")


def _settings(words: list[str] | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in words or []:
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise ConfigError("setting", word, "must be NAME=VALUE")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text  # a word, as of mode=explicit
        except RecursionError:
            raise ConfigError(name, f"{text[:20]}…", "must be JSON with less nesting") from None
    return found


def _table(rows: list[Row]) -> Grid:
    shown = Grid("profile", "kind", "state", "queue pairs", "settings", folds="settings")
    for row in rows:
        words = ", ".join(f"{key}={_short(value)}" for key, value in row.items() if key not in _HIDDEN)
        used = f"{len(row['queue_pairs'])}{' and all' if row['to_all'] else ''}"
        shown.add_row(str(row["number"]), row["kind"], row["state"], used, words)
    return shown


def _change(device: str | None, as_json: bool, do: Callable[[control.Profiles], Row | None], words: str = "") -> None:
    """Do it, and show the profile that it made or changed, or say these words."""
    with control.find_device(device) as node:
        row = do(control.Profiles(node))
        if as_json:
            print_json({"device": node.name, "profile": row})
        elif row is None:
            print(words)
        else:
            terminal().print(_table([row]))


def _short(value: Any) -> str:
    return f"{len(value)} of them" if isinstance(value, list) and len(value) > 4 else json.dumps(value)


@profile_app.command("list")
def show(
    number: Annotated[int | None, typer.Argument(min=1, metavar="N", help="Only this profile.")] = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """List profiles, their settings, and how many queue pairs use them."""
    with control.find_device(device) as node:
        known = control.Profiles(node)
        rows = known.all() if number is None else [known.find(number)]
        print_rows(as_json, "profiles", rows, lambda: _table(rows))


@profile_app.command("add")
def add(
    kind: Annotated[str, typer.Argument(metavar="format|ev|cc", help="What the profile is of.")],
    settings: Settings = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Add a profile in state INIT."""
    values = _settings(settings)
    _change(device, as_json, lambda profiles: profiles.add(kind, **values))


@profile_app.command("set")
def change(
    number: Number,
    settings: Settings = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Change settings of a profile in INIT: all of them, or none."""
    values = _settings(settings)
    _change(device, as_json, lambda profiles: profiles.set(number, **values))


@profile_app.command("state")
def state(
    number: Number,
    to: Annotated[str, typer.Argument(metavar="init|offline|online", help="The next state, one step on or back.")],
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Move a profile to its next state.

    INIT → OFFLINE validates the profile as a whole. ONLINE profiles can be used. Back, once no queue pair uses it."""
    _change(device, as_json, lambda profiles: profiles.move(number, to))


@profile_app.command("remove")
def remove(number: Number, device: DeviceName = None, as_json: AsJson = False) -> None:
    """Remove a profile in INIT."""
    _change(device, as_json, lambda profiles: profiles.remove(number), f"profile {number} removed")


@profile_app.command("give")
def give(
    number: Annotated[
        int | None, typer.Argument(min=1, metavar="N", help="An EV or CC profile that is ONLINE.")
    ] = None,
    own: Annotated[
        str | None, typer.Option("--own", metavar="ev|cc", help="Instead of N: the device's own profile again.")
    ] = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Set the default profile of new queue pairs."""
    if (number is None) == (own is None):
        raise ConfigError("N", MISSING, "needs the number of a profile, or --own, and not both")
    if number is not None:
        _change(device, as_json, lambda profiles: profiles.give_to_all(number))
    else:
        words = f"queue pairs use the device's own {own} profile"
        _change(device, as_json, lambda profiles: profiles.give_own(str(own)), words)
