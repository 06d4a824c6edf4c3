"""What an assessment comes to, as rows and sentences that a terminal and a page share."""

from __future__ import annotations

from dataclasses import fields

from softmrc._support.units import count_text, counted, money_text, power_text, rate_text, ratio_text, share_text
from softmrc.fabric.description import Failures, JobSettings
from softmrc.planner.assess import Assessment
from softmrc.planner.availability import PART_WORDS, POLICIES, TRANSPORT_WORDS, TRANSPORTS
from softmrc.planner.closed_form import YEAR_H
from softmrc.planner.monte_carlo import MONTH_H
from softmrc.planner.sensitivity import NO_DIFFERENCE, BreakEven

DIVERSITY_HEAD = ["the other host is", "share of pairs", "switches", "paths a plane", "paths"]
DOMAIN_HEAD = ["one failed", "there are", "hosts hit", "each loses", "in hosts", "a month"]
LOSSES_TITLE = "Where the job's time goes, in per cent, by policy"
LOSSES_HEAD = [f"{policy}, {TRANSPORT_WORDS[t]}" for policy in POLICIES for t in TRANSPORTS]
SECTIONS: dict[str, type[Failures] | type[JobSettings]] = {"failures": Failures, "job": JobSettings}
THE_FILES = "the file's"
THE_RATES = "from the rates"
DERIVED = {"failures.links_per_optic": "links_of_an_optic", "failures.planes_per_optic": "planes_of_an_optic"}
ORIGINS = {  # of defaults, as docs/guides/failure-costs.md has them; all others are assumed
    "failures.gpu_per_year": "published", "failures.nic_per_year": "published",
    "failures.switch_per_year": "published in part",
    "failures.link_per_year": "one paper's", "job.rides_out_s": "NCCL's default",
}  # fmt: skip


def summary(found: Assessment) -> str:
    shape = found.description.fabric
    nic = rate_text(shape.planes * shape.host_link_bps)
    gpus = f"{found.description.gpus:,} GPUs, " if found.description.gpus != shape.hosts else ""
    return (
        f"{gpus}{counted(shape.hosts, 'NIC')} of {nic}, {counted(shape.planes, 'plane')} of "
        f"{counted(shape.tiers, 'tier')}, {counted(shape.switches, 'switch', 'es')}, {counted(shape.cables, 'cable')}"
    )


def diversity_rows(found: Assessment) -> list[list[str]]:
    return [
        [d.relation, share_text(d.share_of_pairs), str(d.switches), f"{d.paths_per_plane:,}", f"{d.paths:,}"]
        for d in found.diversity
    ]


def domain_rows(found: Assessment) -> list[list[str]]:
    return [
        [d.what, f"{d.count:,}", f"{d.hosts:,}", share_text(d.share), count_text(d.fabric_hosts),
         count_text(d.a_month) if d.per_year else "—"]
        for d in found.domains
    ]  # fmt: skip


def losses_rows(found: Assessment) -> list[list[str]]:
    """Where the time goes, in per cent: a row for each part, a column for each policy and transport."""
    columns = [found.losses[p][t] for p in POLICIES for t in TRANSPORTS]
    rows = [[words, *(_percent(getattr(one, part)) for one in columns)] for part, words in PART_WORDS.items()]
    rows.append(["lost in all", *(_percent(one.lost) for one in columns)])
    rows.append(["stops a month", *(count_text(one.stops_per_month) for one in columns)])
    rows.append(["swaps a month", *(count_text(one.swaps_per_month) for one in columns)])
    return rows


def _percent(share: float) -> str:
    return f"{100 * share:.{1 if share >= 0.1 else 2}f}" if share else "0"


def answer_lines(found: Assessment) -> list[str]:
    """The answer first, then what it rests on."""
    mrc, roce = found.of_best("mrc"), found.of_best("roce")
    gap = roce.lost - mrc.lost
    saved = found.price(abs(gap))
    best = {t: POLICIES[found.best(t)] for t in TRANSPORTS}
    if abs(gap) < NO_DIFFERENCE:
        verdict = "MRC and RoCE lose the same."
    else:
        who, worse = ("MRC", "RoCE") if gap > 0 else ("RoCE", "MRC")
        verdict = (
            f"{who} loses less: on this same fabric {worse} costs {saved.gpu_h:,.0f} GPU-hours a month "
            f"more ({share_text(abs(gap))}), {money_text(saved.usd)} "
            f"and {saved.mwh:,.0f} MWh ({power_text(saved.watts)})."
        )
    lines = [verdict, _elsewhere_line(found)]
    for t, one in (("mrc", mrc), ("roce", roce)):
        network = max(found.network_share(t), 0.0)
        lines.append(
            f"With {TRANSPORT_WORDS[t]} the best policy is to {best[t]}: {share_text(one.lost)} of the job's time is "
            f"lost; of what the hosts leave, the network's failures take {share_text(network)}."
        )
    lines.append(
        f"{share_text(found.hosts_alone.lost)} would be lost with a network that never fails: GPUs, NICs, hosts, power "
        "and checkpoints, the same for both."
    )
    lines.append(_ridden_line(found))
    lines += [_drawn_line(found, t) for t in TRANSPORTS]
    return lines + _uplinks_lines(found)


def _elsewhere_line(found: Assessment) -> str:
    one = found.roce_elsewhere
    if one.is_here:
        return "With no other number of planes, of the same NICs and switches, would RoCE lose less."
    gap = one.lost - found.of_best("mrc").lost
    than = f"{share_text(abs(gap))} {'more' if gap > 0 else 'less'} than" if abs(gap) >= NO_DIFFERENCE else "as much as"
    return (
        f"RoCE loses least on another fabric of the same NICs and switches ({rate_text(one.switch_bps)}), "
        f"{counted(one.planes, 'plane')} of {counted(one.tiers, 'tier')}: {share_text(one.lost)}, "
        f"{than} MRC on this one."
    )


def _uplinks_lines(found: Assessment) -> list[str]:
    """What lean uplinks cost, and what is missing for either transport."""
    lines, ratio = [], found.description.fabric.oversubscription
    if ratio > 1:
        crossing = found.description.job.crossing_share
        what = "all" if crossing == 1 else share_text(crossing)
        lines.append(
            f"Uplinks are lean, {ratio_text(ratio)}: where {what} that is sent leaves its leaf (job.crossing_share), "
            f"they take {share_text(found.uplinks_share)} of the time that failures leave, with MRC and with RoCE. The "
            "figures above leave that out."
        )
    d = found.description
    if d.spares > d.places:
        lines.append(
            f"The fabric has ports for {d.places:,} of the {counted(d.spares, 'spare')} that are taken to stand by "
            "(job.spare_share): all other NICs are the job's."
        )
    if found.idle_switches:
        lines.append(
            f"{counted(found.idle_switches, 'switch', 'es')} that no packet has to cross (a single leaf or pod needs "
            "none above it) are left out."
        )
    return lines


def _ridden_line(found: Assessment) -> str:
    """What happens, and for how much of it the job stops."""
    failures = sum(d.a_month for d in found.domains)
    cables = sum(d.count for d in found.domains if d.what.endswith("cable"))
    flaps = cables * found.description.failures.flap_per_link_year * MONTH_H / YEAR_H
    stops = {t: count_text(found.of_best(t).stops_per_month) for t in TRANSPORTS}
    ridden = {t: count_text(found.ridden_out(t)) for t in TRANSPORTS}
    return (
        f"A month brings {count_text(failures)} failures and {count_text(flaps)} flaps. Of the failures, "
        f"{ridden['mrc']} are such as a job goes on without with MRC and {ridden['roce']} with RoCE; for the others it "
        f"stops, if it is not down already: {stops['mrc']} times with MRC and {stops['roce']} times with RoCE."
    )


def _drawn_line(found: Assessment, transport: str) -> str:
    drawn = found.drawn[transport]
    months = len(drawn.lost)
    spread = f", from {share_text(min(drawn.lost))} to {share_text(max(drawn.lost))}" if months > 1 else ""
    plural = "months" if months > 1 else "month"
    mean = share_text(drawn.mean.lost)
    return f"{TRANSPORT_WORDS[transport]}, {months} {plural} drawn with seed {found.seed}: {mean}{spread}."


def flip_line(flip: BreakEven) -> str:
    winner = {"mrc": "MRC loses less", "roce": "RoCE loses less", "neither": "MRC and RoCE tie"}[flip.winner]
    what = winner if flip.changes_winner else f"best MRC policy becomes: {POLICIES[flip.policy]}"
    side = "of" if isinstance(flip.flips_at, int) else "above" if flip.flips_at > flip.value else "below"
    there = f"{flip.key} {side} {flip.flips_at:.3g}"
    if not flip.value:
        return f"{there} ({THE_RATES if flip.key in DERIVED else 'assumed: as many as it takes'}): {what}"
    return f"{there} ({origin(flip.key, flip.value)}: {flip.value:g}): {what}"


def origin(key: str, value: float) -> str:
    """Where a value of [failures] or [job] comes from."""
    section, name = key.split(".")
    default = next(one.default for one in fields(SECTIONS[section]) if one.name == name)
    return ORIGINS.get(key, "assumed") if value == default else THE_FILES


def flip_lines(found: Assessment) -> list[str]:
    lines = [flip_line(one) for one in found.search.flips]
    if any(one.changes_winner for one in found.search.flips):
        return lines
    said = (
        "No single assumption changes who loses less: rates, times and shares from a hundredth to a hundred times, "
        "whole numbers as far as they go"
    )
    ends = "".join(f"; {key} no further than {end:.3g}, where it ends" for key, end in found.search.ends.items())
    return [f"{said}{ends}.", *lines]


def assumption_rows(found: Assessment) -> list[list[str]]:
    """Every assumption, and where it comes from."""
    rows = []
    for section, kind in SECTIONS.items():
        for one in fields(kind):
            key, value = f"{section}.{one.name}", getattr(getattr(found.description, section), one.name)
            derived = DERIVED.get(key) if not value else None
            shown, who = (getattr(found.description, derived), THE_RATES) if derived else (value, origin(key, value))
            rows.append([key, f"{shown:g}", who])
    return rows


def assess_note(found: Assessment) -> str:
    theirs = [row[0] for row in assumption_rows(found) if row[2] == THE_FILES]
    who = f"The file sets {', '.join(theirs)}; all others" if theirs else "All"
    return (
        f"{who} of [failures] and [job] are the defaults that come with SoftMRC: some published, most assumed "
        "(docs/guides/failure-costs.md says which). --assumptions prints them."
    )
