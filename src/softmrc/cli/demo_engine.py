"""`softmrc demo --engine`: one transfer through a bad simulated network, shown in one screen."""

from __future__ import annotations

import typer
from rich.table import Table
from rich.text import Text

from softmrc.cli.terminal import terminal
from softmrc.demo import engine as story

BARS = " ▁▂▃▄▅▆▇█"


def _bars(values: list[float], top: float) -> str:
    return "".join(BARS[min(int(v / top * (len(BARS) - 1) + 0.5), len(BARS) - 1)] for v in values)


def _facts(result: story.DemoResult) -> Table:
    table = Table(header_style="bold")
    table.add_column("what the network did")
    table.add_column("packets", justify="right")
    table.add_column("what MRC did")
    table.add_column("count", justify="right")
    network, sender = result.network, result.sender
    left = [
        ("lost at random", network["lost"]),
        (f"lost on silent plane {story.LOST_PLANE}", network["swallowed"]),
        ("corrupted (one bit)", network["corrupted"]),
        ("trimmed to a header", network["trimmed"]),
        ("marked (ECN)", network["marked"]),
        ("reordered", network["reordered"]),
        ("duplicated", network["duplicated"]),
    ]
    right = [
        ("data packets sent", sender["packets_sent"]),
        ("of them retransmitted", sender["packets_retransmitted"]),
        ("retransmitted needlessly", sender["loss_spurious"]),
        ("paths withdrawn", sender["evs_demoted"]),
        ("paths revived", sender["evs_revived"] + sender["evs_restored"]),
        ("refused, bad checksum", result.bad_icrc),
        ("timeouts", sender["timeouts"]),
    ]
    for (what, count), (deed, number) in zip(left, right, strict=True):
        table.add_row(what, f"{count:,}", deed, f"{max(number, 0):,}")
    return table


def show(seed: int) -> None:
    """Move 64 MiB through 4 planes × 32 paths that lose, reorder, corrupt, trim and mark; half-way, silence a plane."""
    console = terminal()
    about = (
        f": {story.TOTAL_BYTES >> 20} MiB over one connection. It uses {story.PLANES} separate networks (planes) of "
        f"{story.PLANE_RATE_BPS // 10**9} Gb/s with {story.EVS_PER_PLANE} paths each, all simulated. They lose, "
        f"reorder and corrupt packets; half-way, plane {story.LOST_PLANE} silently stops delivering.\n"
    )
    console.print(Text.assemble(("SoftMRC demo", "bold"), about))
    console.print(f"Delivered by each plane over time; a full bar is {story.PLANE_RATE_BPS // 10**9} Gb/s:")
    result = story.run(seed, bins=48)
    for plane in range(story.PLANES):
        usable = result.ev_states["GOOD"][plane] + result.ev_states["SKIP"][plane]
        bars = _bars(list(result.goodput_bps[plane]), story.PLANE_RATE_BPS)
        console.print(
            Text.assemble(f"  plane {plane} ", (bars, "cyan"), f"  {usable:2d} of {story.EVS_PER_PLANE} paths in use")
        )
    mark = int(result.plane_lost_us / result.bin_us)
    indent = " " * 10
    axis = (f"{indent}{'─' * mark}", ("▲", "red"), f"{'─' * (47 - mark)}  {result.simulated_us:,.0f} µs")
    console.print(Text.assemble(*axis))
    console.print(f"{indent}{' ' * mark}plane {story.LOST_PLANE} goes silent\n", style="red")
    console.print(_facts(result))
    before = result.rate_bps(0, result.plane_lost_us)
    after = result.rate_bps(result.plane_lost_us + 5 * story.BASE_RTT_US, result.simulated_us)
    planes = story.PLANES
    rates = f"{before / 1e9:.0f} Gb/s over {planes} planes, then {after / 1e9:.0f} Gb/s over the other {planes - 1}"
    console.print(f"\nThroughput: {rates}.")
    if not result.succeeded:
        words = ("Not every byte arrived where it belongs.", "bold red")
        console.print(Text.assemble(words, f" Please report this, with seed {seed}."))
        raise typer.Exit(1)
    console.print(f"All {result.messages} writes completed, in order, every byte in its place.", style="bold green")
