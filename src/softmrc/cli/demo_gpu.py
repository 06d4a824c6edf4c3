"""`softmrc demo --gpu`: what a training job over NCCL saw of its network's faults."""

from __future__ import annotations

import typer
from rich.table import Table
from rich.text import Text

from softmrc.cli.lazy import BENCH, needing
from softmrc.cli.terminal import terminal


def show(steps: int) -> None:
    with needing("demo --gpu", BENCH):
        from softmrc_bench import nccl_demo
    console = terminal()
    console.print(
        "Two processes on one GPU train a transformer with DDP over NCCL, three times; planes are on loopback.\n"
    )
    jobs = nccl_demo.perform(steps)
    table = Table(header_style="bold")
    for column in ("job", "median step", "worst", "last loss", "weights"):
        table.add_column(column, justify="left" if column == "job" else "right", no_wrap=True)
    for job in jobs:
        shown = [f"{job.median_ms:,.1f} ms", f"{job.worst_ms:,.0f} ms", f"{job.loss:.6f}", job.digests[0][:10]]
        table.add_row(job.name, *shown)
    console.print(table)
    for share, _, words in jobs[-1].script:
        console.print(f"  {share:4.0%}  {words}", highlight=False)
    is_good = nccl_demo.is_identical(jobs)
    mark = ("Weights bit-identical", "bold green") if is_good else ("Weights differ", "bold red")
    console.print(Text.assemble(mark, ": over sockets and over SoftMRC, with faults and without."))
    if not is_good:
        raise typer.Exit(1)
