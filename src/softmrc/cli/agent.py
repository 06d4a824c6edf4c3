"""`softmrc agent` and `softmrc dash`: this host's devices, for Prometheus and for people."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softmrc.errors import ConfigError, DeviceError, UsageError
from softmrc.fabric import load
from softmrc.files import read_text
from softmrc.lab import Lab
from softmrc.mapper import Mapper
from softmrc.mapper.kernel import LabFabric, lab_settings

if TYPE_CHECKING:
    from softmrc.agent.watch import FabricWatch

TOKEN = "SOFTMRC_TOKEN"
Address = Annotated[str, typer.Option("--listen", help="ADDRESS:PORT; off loopback only with a token.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help=f"Holds the token that others must have; or {TOKEN}.")
]


def agent(listen: Address = "127.0.0.1:9464", token_file: TokenFile = None) -> None:
    """Serve this host's devices to Prometheus at /metrics, until Ctrl-C."""
    _serve(listen, token_file, None, page=False)


def dash(
    listen: Address = "127.0.0.1:9465",
    token_file: TokenFile = None,
    lab: Annotated[str | None, typer.Option("--lab", help="Map this lab too, and draw what is broken (root).")] = None,
    fabric: Annotated[Path | None, typer.Option("--fabric", help="A fabric file, to draw.")] = None,
    denylist: Annotated[Path | None, typer.Option("--denylist", help="With --fabric: what is broken in it.")] = None,
) -> None:
    """A page about this host's devices, and about a fabric; until Ctrl-C."""
    if lab is not None and fabric is not None:
        raise ConfigError("fabric", str(fabric), "either a lab or a fabric file")
    if (fabric is None) != (denylist is None):
        raise ConfigError("denylist", str(denylist), "a denylist and the fabric file that it is of")
    with ExitStack() as stack:
        watch = None
        if lab is not None:
            watch = stack.enter_context(_watched_lab(lab))
        elif fabric is not None and denylist is not None:
            watch = stack.enter_context(_watched_file(fabric, denylist))
        _serve(listen, token_file, watch, page=True)


@contextmanager
def _watched_lab(name: str) -> Iterator[FabricWatch]:
    from softmrc.agent.watch import FabricWatch, MapperSource

    lab = Lab.find(name or None)
    with LabFabric(lab) as fabric:
        watch = FabricWatch(lab.name, lab.shape, MapperSource(Mapper(fabric, lab_settings(lab))))
        try:
            yield watch
        finally:
            watch.close()


@contextmanager
def _watched_file(fabric: Path, denylist: Path) -> Iterator[FabricWatch]:
    from softmrc.agent.watch import DenylistSource, FabricWatch

    description = load(fabric)
    watch = FabricWatch(description.name, description.fabric, DenylistSource(denylist))
    try:
        yield watch
    finally:
        watch.close()


def token_of(file: Path | None) -> str:
    """The token, from a file or the environment; never from the command line, which others can read."""
    return (read_text(file, "token-file") if file is not None else os.environ.get(TOKEN, "")).strip()


def _serve(where: str, token_file: Path | None, watch: FabricWatch | None, page: bool) -> None:
    try:
        import uvicorn

        from softmrc.agent.collect import Collector
        from softmrc.agent.guard import Listen
        from softmrc.agent.web import Site
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'softmrc[operate]'") from None
    listen = Listen.parse(where, token_of(token_file))
    collector = Collector()
    server = uvicorn.Server(
        uvicorn.Config(
            Site(collector, watch, page).app(listen),
            host=listen.host,
            port=listen.port,
            access_log=False,
            log_level="warning",
            limit_concurrency=128,
            timeout_graceful_shutdown=1,
        )
    )
    at = f"[{listen.host}]" if ":" in listen.host else listen.host
    print(f"http://{at}:{listen.port}/{'' if page else 'metrics'}", flush=True)
    try:
        server.run()
    except SystemExit:
        raise DeviceError(f"cannot listen on {where}") from None
    finally:
        collector.close()
