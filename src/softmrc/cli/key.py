"""`softmrc key`: an identity key, and its public half for others."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from softmrc.config.environment import IDENTITY
from softmrc.connection import identity

key_app = typer.Typer(help="Keys by which peers authenticate each other, instead of a secret.", no_args_is_help=True)
HELP = "Where the key is, and the file of known peers."
Folder = Annotated[Path, typer.Argument(help=HELP)]
FolderInUse = Annotated[Path, typer.Argument(help=HELP, envvar=IDENTITY)]


def _show(mine: identity.Identity) -> None:
    print(f"{socket.gethostname()} {mine.public.hex()}")


@key_app.command("new")
def new(folder: Folder) -> None:
    """Create a key and an empty known_peers file; print the line for the peers' known_peers."""
    _show(identity.make(folder))


@key_app.command("show")
def show(folder: FolderInUse) -> None:
    """Print the line for the peers' known_peers: a name, which may be changed there, and the public key."""
    _show(identity.Identity(folder))
