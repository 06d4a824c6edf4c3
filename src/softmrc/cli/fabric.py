"""`softmrc fabric …`: switch configuration, drawing and routes of a fabric file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from softmrc._support import resources
from softmrc._support.files import write_text
from softmrc.cli.options import AsJson, print_json
from softmrc.cli.terminal import terminal
from softmrc.errors import MISSING, ConfigError
from softmrc.fabric import AddressPlan, Tier, link_name, load, table_of
from softmrc.fabric import config as configs
from softmrc.fabric.drawing import draw as draw_fabric

fabric_app = typer.Typer(help="Configure, draw and trace a fabric.", no_args_is_help=True)
File = Annotated[
    Path, typer.Argument(help="A fabric file (TOML), or a name of `softmrc examples`.", show_default=False)
]


@fabric_app.command("config")
def config(
    file: File,
    target: Annotated[str, typer.Option(metavar="linux|frr|sonic", help="What the configuration is for.")] = "linux",
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to write.")] = Path("config"),
) -> None:
    """Write the configuration of every switch and host, one file each."""
    configs.check_target(target)  # before a folder is made
    description = load(resources.find(file, resources.FABRICS, "file"))
    shape = description.fabric
    total = shape.hosts + shape.switches
    with terminal(stderr=True).status("") as status:
        count = configs.write(
            description, target, output, lambda done: status.update(f"{done:,} of {total:,} files in {output}")
        )
    print(f"{count:,} files in {output}")
    if max(shape.cables_per_link, shape.cables_per_core_link) > 1:
        print("Cables side by side between two switches are one port here: make that port a bundle of them.")


@fabric_app.command("draw")
def draw(
    file: File,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="SVG file; - is stdout. Default: NAME.svg.")
    ] = None,
) -> None:
    """Draw a fabric as SVG."""
    description = load(resources.find(file, resources.FABRICS, "file"))
    picture = draw_fabric(description.fabric, description.name)
    if output is not None and str(output) == "-":
        print(picture, end="")
        return
    path = output or Path(f"{description.name}.svg")
    write_text(path, picture)
    print(path)


@fabric_app.command("routes")
def routes(
    file: File,
    node: Annotated[str | None, typer.Argument(help="A switch, as p0.leaf0: print its table.")] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="HOST", help="Print the paths from this host.")
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="HOST", help="The host that they lead to.")] = None,
    ev: Annotated[int | None, typer.Option(min=0, help="Only the path of this EV (an index).")] = None,
    over: Annotated[
        str | None, typer.Option(metavar="CABLE", help="Only paths over this cable, as p0.leaf0-spine1.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the paths between two hosts, or a switch's table.

    Paths need --from and --to; a table needs the NODE."""
    description = load(resources.find(file, resources.FABRICS, "file"))
    plan_ = AddressPlan(description.fabric, description.addressing)
    of_paths = {"--from": source, "--to": to, "--ev": ev, "--over": over}
    given = [name for name, value in of_paths.items() if value is not None]
    if node is not None and given:
        raise ConfigError(given[0], of_paths[given[0]], f"cannot be combined with the switch {node}")
    if node is not None:
        _print_table(plan_, node, as_json)
    elif source is not None and to is not None:
        _print_paths(plan_, source, to, ev, over, as_json)
    else:
        missing = "--to" if source is not None else "--from"
        raise ConfigError(
            missing,
            MISSING,
            "is missing",
            "Name both hosts, as --from host0 --to host7, or a switch alone, as p0.leaf0.",
        )


def _host(plan_: AddressPlan, option: str, name: str) -> int:
    try:
        found = plan_.shape.parse_node(name)
    except ConfigError as error:
        raise error.replaced(field=option) from None
    if found.tier is not Tier.HOST:
        raise ConfigError(option, name, "must be a host, as host0")
    return found.index


def _print_paths(plan_: AddressPlan, source: str, to: str, ev: int | None, over: str | None, as_json: bool) -> None:
    a, b = _host(plan_, "--from", source), _host(plan_, "--to", to)
    if a == b:
        raise ConfigError("to", to, "must be another host than --from")
    count = plan_.evs(a, b)
    if ev is not None and ev >= count:
        raise ConfigError("ev", ev, f"must be 0 to {count - 1} between these hosts")
    wanted = list(range(count)) if ev is None else [ev]
    if over is not None:
        try:
            links = plan_.shape.links_of(plan_.shape.parse_cable(over))
        except ConfigError as error:
            raise error.replaced(field="--over") from None
        crossing = {e for link in links for e in plan_.evs_over(link, a, b)}
        wanted = [e for e in wanted if e in crossing]
        if not wanted and not as_json:
            print(f"No EV from {source} to {to} crosses {over}." if ev is None else f"EV {ev} does not cross {over}.")
    neutral = plan_.addressing.plane_in == "block"
    rows: list[dict[str, Any]] = []
    for e in wanted:
        place = (a, b, *plan_.place_of(e))
        names = [link_name(plan_.shape, link) for link in plan_.links(*place)]
        carrier = str(plan_.carrier(*place)) if neutral else None
        rows.append({"ev": e, "path": str(plan_.path(*place)), "carrier": carrier, "links": names})
    if as_json:
        print_json({"paths": rows})
        return
    for row in rows:
        hops = [str(name).split(".")[1] for name in row["links"]]
        way = ">".join([hops[0].split(">")[0], *(hop.split(">")[1] for hop in hops)])
        print(f"ev {row['ev']:<4} plane {row['ev'] % plan_.shape.planes}  {way}\n    {row['path']}")
        if row["carrier"]:
            print(f"    {row['carrier']}")


def _print_table(plan_: AddressPlan, name: str, as_json: bool) -> None:
    node = plan_.shape.parse_node(name)
    if node.tier is Tier.HOST:
        raise ConfigError("node", name, "must be a switch", "Hosts have no table; use --from and --to.")
    entries = table_of(plan_, node).entries
    rows = [
        {
            "prefix": str(e.prefix),
            "action": e.action.value,
            "link": None if e.link is None else link_name(plan_.shape, e.link),
            "meaning": e.meaning,
        }
        for e in entries
    ]
    if as_json:
        print_json({"switch": plan_.shape.name_of(node), "entries": rows})
        return
    print(f"{plan_.shape.name_of(node)}: {len(rows)} entries; everything else is dropped")
    for row in rows:
        print(f"{row['prefix']:<24} {row['action']:<8} {row['link'] or '':<18} {row['meaning']}".rstrip())
