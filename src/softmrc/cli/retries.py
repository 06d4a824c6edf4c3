"""`softmrc retries`: what is lost to retries, fault by fault, with MRC and with RoCE."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from softmrc._support.files import check_place
from softmrc._support.units import share_text
from softmrc.cli.exit_codes import INTERRUPTED
from softmrc.cli.options import AsJson, Quiet, Report, Seed, print_json
from softmrc.cli.sim import Keys, write_report
from softmrc.cli.terminal import a_number, terminal
from softmrc.planner import retries as weighed
from softmrc.planner.report import retries_html
from softmrc.sim.sweep import read_set

NONE_SEEN, UNCLEAR, ONCE = "none", "unclear", "–"


def retries(
    seed: Seed = 1,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Number of seeds for each fault and transport.")] = 3,
    keys: Keys = None,
    gpu_hour_usd: Annotated[
        float, typer.Option(min=0, max=1e6, metavar="USD", help="Price of a GPU-hour.", callback=a_number)
    ] = 2.5,
    as_json: AsJson = False,
    report: Report = None,
    quiet: Quiet = False,
) -> None:
    """Show what retransmissions cost a job, for MRC and RoCE.

    Each fault is simulated with both: lost bandwidth, lost time, the worst step and money."""
    check_place(report)
    changes = dict(read_set(text) for text in keys or [])
    for transport in weighed.TRANSPORTS:
        weighed.scenario_of(transport, None, keys=changes)  # a wrong key is refused before the work
    found: list[weighed.Cost] = []
    is_whole = True
    console = terminal(stderr=True)
    console.quiet = quiet
    try:
        with console.status("") as status:
            runs = range(seed, seed + seeds)
            for one in weighed.costs(runs, gpu_hour_usd, changes, lambda fault, t: status.update(f"{t}: {fault}")):
                found.append(one)
    except KeyboardInterrupt:
        is_whole = False
    if as_json:
        costs = [one.to_json() for one in found]
        print_json({"seed": seed, "seeds": seeds, "gpu_hour_usd": gpu_hour_usd, "costs": costs})
    elif found:
        _print(found, seeds, gpu_hour_usd)
    if not is_whole:
        all_rows = len(weighed.FAULTS) * len(weighed.TRANSPORTS)
        said = f"Stopped by hand: {len(found)} of {all_rows} rows were found."
        terminal(stderr=True).print(said, style="yellow", highlight=False)
        raise typer.Exit(INTERRUPTED)
    if report is not None:
        words = ["softmrc retries", f"--seed {seed} --seeds {seeds} --gpu-hour-usd {gpu_hour_usd:g}"]
        again = " ".join([*words, *(f"--set {shlex.quote(text)}" for text in keys or [])])
        rows = [[one.fault, one.transport, *cells(one)] for one in found]
        lines = [answer(found), calm(found), note(seeds, gpu_hour_usd), f"Run it again: {again}"]
        write_report(report, retries_html(["while", "transport", *HEADS], rows, lines))


HEADS = ("retrans.", "time lost", "worst step", "$/1000 GPU-h")


def _print(found: list[weighed.Cost], seeds: int, gpu_hour_usd: float) -> None:
    console = terminal()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Lost to retries", title_justify="left")
    table.add_column("while", no_wrap=True)
    table.add_column("")
    for head in HEADS:
        table.add_column(head, justify="right")
    for one in found:
        table.add_row(one.fault if one.transport == "MRC" else "", one.transport, *cells(one))
    console.print(table)
    console.print(answer(found), style="bold", highlight=False)
    console.print(calm(found), highlight=False)
    console.print(note(seeds, gpu_hour_usd), style="dim", highlight=False)


def cells(one: weighed.Cost) -> list[str]:
    """One row's figures; of a job that stops, only that it does."""
    again = share_text(one.bandwidth_share)
    if not one.time.values:
        return [again, "stops", "", ""]
    some = f" ({one.stopped} stop)" if one.stopped else ""
    if not one.is_lasting:
        return [again, told(one.lost_us, 1, ".0f", "µs") + some, told(one.step), ONCE]
    return [again, told(one.time) + some, told(one.step), UNCLEAR if one.usd is None else f"{one.usd:,.0f}"]


def told(spread: weighed.SeedSpread, times: float = 100, form: str = ".1f", unit: str = "%") -> str:
    """The mean, or the least and the most where some seeds lose and some do not."""
    least, mean, most = (f"{times * one:+{form}}" for one in (min(spread.values), spread.mean, max(spread.values)))
    if spread.is_clear:
        return f"{mean} {unit}"
    return NONE_SEEN if spread.is_none else f"{least} … {most} {unit}"


def answer(found: list[weighed.Cost]) -> str:
    """For each transport, how many faults it survives, and which costs it most."""
    said = []
    for transport in weighed.TRANSPORTS:
        mine = [one for one in found if one.transport == transport]
        going = [one for one in mine if not one.stopped]
        if not mine:
            continue
        text = f"{transport} rides out {len(going)} of {len(mine)} faults"
        if clear := [one for one in going if one.is_lasting and one.time.is_clear]:
            worst = max(clear, key=lambda one: one.time.mean)
            text += (
                f" and loses {share_text(worst.time.mean)} of the time to the worst of those that stay ({worst.fault})"
            )
        said.append(text)
    return "; ".join(said) + "."


def calm(found: list[weighed.Cost]) -> str:
    """The baseline of every figure: the job without a fault."""
    took = {one.transport: one.calm_us for one in found}
    return "Without a fault the job takes " + ", ".join(f"{us:,.0f} µs with {t}" for t, us in took.items()) + "."


def note(seeds: int, gpu_hour_usd: float) -> str:
    fabric, work = weighed.JOB["fabric"], weighed.JOB["workload"]
    who = f"MRC on {fabric['planes']} planes, RoCE on one with 4 QPs a pair and switches that reroute within 1 ms"
    job = f"{work['steps']} steps of {work['compute_us']:g} µs and an all-reduce of {work['bytes'] / 1e6:g} MB"
    return (
        f"{fabric['hosts']} hosts of {fabric['nic_bps']}, {who}; {job}; the mean of {seeds} seed{'s' * (seeds > 1)}, "
        "compared with the same transport without the fault. Time lost: of a fault that stays, the share of the time "
        "from when it comes; of one that ends, once for all of it. Where some seeds lose and some do not, the "
        "least … the most of them, and what it costs is unclear; none: no seed loses. Money: that share at "
        f"$ {gpu_hour_usd:g} a GPU-hour, for as long as the fault is there."
    )
