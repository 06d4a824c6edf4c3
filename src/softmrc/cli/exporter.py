"""`softmrc exporter` and `softmrc dashboard`: this host's devices, for Prometheus and on a web page."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softmrc._support import resources
from softmrc._support.files import read_text
from softmrc.cli.terminal import say
from softmrc.errors import MISSING, ConfigError, DeviceError, UsageError

if TYPE_CHECKING:
    from softmrc.ops.agent.guard import ListenAddress
    from softmrc.ops.agent.watch import FabricWatch

TOKEN = "SOFTMRC_TOKEN"
MODULES = ("prometheus_client", "starlette", "uvicorn")  # that serving needs
NEEDED = f"pip install {' '.join(MODULES).replace('_', '-')}"
Address = Annotated[str, typer.Option("--listen", help="Where to listen. Addresses other than loopback need a token.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help=f"File with the token that clients must send. Default: {TOKEN}.")
]


def exporter(listen: Address = "127.0.0.1:9464", token_file: TokenFile = None) -> None:
    """Export this host's metrics to Prometheus.

    The metrics are at http://ADDRESS:PORT/metrics. Ctrl-C ends it."""
    _serve(listen, token_file, None, page=False)


def dashboard(
    listen: Address = "127.0.0.1:9465",
    token_file: TokenFile = None,
    lab: Annotated[
        str | None, typer.Option("--lab", help="Also map this lab and draw its faults (needs root).")
    ] = None,
    fabric: Annotated[Path | None, typer.Option("--fabric", help="Also draw this fabric file.")] = None,
    denylist: Annotated[
        Path | None, typer.Option("--denylist", help="Faults of --fabric, as `softmrc mapper` writes them.")
    ] = None,
) -> None:
    """Show this host's devices, or a fabric, on a web page.

    The page is at http://ADDRESS:PORT/. Ctrl-C ends it."""
    if lab is not None and fabric is not None:
        raise ConfigError("--fabric", str(fabric), "cannot be combined with --lab")
    if denylist is not None and fabric is None:
        hint = "Draw a fabric with what is broken in it: --fabric FILE --denylist FILE."
        raise ConfigError("--denylist", MISSING, "needs --fabric", hint)
    with ExitStack() as stack:
        watch = None
        if lab is not None:
            watch = stack.enter_context(_watched_lab(lab))
        elif fabric is not None:
            watch = stack.enter_context(_watched_file(fabric, denylist))
        _serve(listen, token_file, watch, page=True)


@contextmanager
def _watched_lab(name: str) -> Iterator[FabricWatch]:
    from softmrc.lab import Lab
    from softmrc.ops.agent.watch import FabricWatch, MapperSource
    from softmrc.ops.mapper import Mapper
    from softmrc.ops.mapper.lab_fabric import LabFabric, lab_settings

    lab = Lab.find(name or None)
    with LabFabric(lab) as fabric:
        watch = FabricWatch(lab.name, lab.shape, MapperSource(Mapper(fabric, lab_settings(lab))))
        try:
            yield watch
        finally:
            watch.close()


@contextmanager
def _watched_file(fabric: Path, denylist: Path | None) -> Iterator[FabricWatch]:
    from softmrc.fabric import load
    from softmrc.ops.agent.watch import DenylistSource, FabricWatch

    description = load(resources.find(fabric, resources.FABRICS, "--fabric"))
    watch = FabricWatch(description.name, description.fabric, DenylistSource(denylist))
    try:
        yield watch
    finally:
        watch.close()


def token_of(file: Path | None) -> str:
    """The token, from a file or the environment; never from the command line, which others can read."""
    if file is None:
        return os.environ.get(TOKEN, "").strip()
    text = read_text(file, "--token-file")
    about = file.stat()
    if about.st_mode & 0o004:
        say(f"softmrc: every user of this machine can read the token in {file}: chmod o-r {file}", stderr=True)
    elif about.st_mode & 0o040 and about.st_uid == os.geteuid():  # who is not its owner may need the group to read it
        say(f"softmrc: the group of {file} can read the token in it: chmod g-r {file}", stderr=True)
    return text.strip()


def _serve(where: str, token_file: Path | None, watch: FabricWatch | None, page: bool) -> None:
    try:
        import uvicorn

        from softmrc.ops.agent.collect import Collector
        from softmrc.ops.agent.guard import ListenAddress
        from softmrc.ops.agent.server import config_of
        from softmrc.ops.agent.web import Site
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed: {NEEDED}, or '.[operate]' in a clone") from None
    listen = ListenAddress.parse(where, token_of(token_file))
    sock = _bound(listen, where)
    collector = Collector()
    at = f"[{listen.host}]" if ":" in listen.host else listen.host
    url = f"http://{at}:{sock.getsockname()[1]}/{'' if page else 'metrics'}"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """Print the address only now: from here on an interrupt ends the server cleanly."""
            await super().startup(sockets)
            print(url, flush=True)

    server = Server(config_of(Site(collector, watch, page).app(listen)))
    # Who is interrupted between making that and waiting for it has nothing to be warned of.
    warnings.filterwarnings("ignore", r"coroutine 'Server\.serve' was never awaited", RuntimeWarning)
    try:
        with suppress(KeyboardInterrupt):  # that is how it is meant to end
            server.run([sock])
    finally:
        collector.close()
        sock.close()


def _bound(listen: ListenAddress, where: str) -> socket.socket:
    """A socket bound to this address before the address is printed."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise DeviceError(f"cannot listen on {where}: {error.strerror or error}") from None
    except UnicodeError:  # a..b: no name that could be looked up
        raise ConfigError("--listen", where, "must be ADDRESS:PORT, as 127.0.0.1:9464") from None
    return sock
