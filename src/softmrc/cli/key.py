"""`softmrc key`: an identity key, and its public half for others."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from softmrc.cli.options import AsJson, print_json
from softmrc.connection import identity

key_app = typer.Typer(help="Create and show the keys that authenticate peers.", no_args_is_help=True)
HELP = "Folder of the key and of the known_peers file."
Folder = Annotated[Path, typer.Argument(help=HELP)]
FolderInUse = Annotated[Path, typer.Argument(help=HELP, envvar="SOFTMRC_IDENTITY")]


def _show(mine: identity.Identity, as_json: bool) -> None:
    name, public = socket.gethostname(), mine.public.hex()
    if as_json:
        print_json({"name": name, "public_key": public})
    else:
        print(f"{name} {public}")


@key_app.command("new")
def new(folder: Folder, as_json: AsJson = False) -> None:
    """Create a key and an empty known_peers file.

    Prints the line for the known_peers files of peers."""
    _show(identity.make(folder), as_json)


@key_app.command("show")
def show(folder: FolderInUse, as_json: AsJson = False) -> None:
    """Print the line for the known_peers files of peers.

    It has a name, which you may change there, and the public key."""
    _show(identity.Identity(folder), as_json)
