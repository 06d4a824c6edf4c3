"""`softmrc explain`: why an operation was slow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from softmrc import control
from softmrc.errors import UsageError
from softmrc.recorder.bursts import BurstExplainer
from softmrc.recorder.explain import Explainer, Verdict
from softmrc.recorder.tape import Recording, read


def explain(
    number: Annotated[
        int | None, typer.Argument(min=1, help="Of the operation; without it, the one that lost most.")
    ] = None,
    tape: Annotated[
        list[Path] | None, typer.Option(help="A rank's tape; repeat for all. Without: this user's.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", "-d", help="A running device that marks bursts (NCCL's plugin): 4711-0, or 4711."),
    ] = None,
    group: Annotated[str | None, typer.Option(help="Of which group, if there are several.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every operation that took longer than usual.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Say why an operation was slow, from the flight recorders of its ranks (SOFTMRC_RECORD=1), or a burst of a running
    NCCL job."""
    explainer = _bursts_of(device) if device else Explainer(_of_one_group(_tapes(tape), group))
    found = explainer.slow() if every else [explainer.explain(number)]
    if not found and not as_json:
        print("no operation took longer than usual")
    for verdict in found:
        print(json.dumps(_as_json(verdict)) if as_json else str(verdict))


def _bursts_of(device: str) -> BurstExplainer:
    with control.the_device(device) as node:
        return BurstExplainer.of(node)


def _tapes(named: list[Path] | None) -> list[Recording]:
    """Those that are named, or of each rank the newest."""
    if named:
        return [read(path) for path in named]
    where = control.folder()
    paths = sorted(where.glob("*.flight"), key=lambda path: path.stat().st_mtime) if where.is_dir() else []
    newest = {(one.owner.group, one.owner.size, one.owner.rank): one for one in map(read, paths)}
    return list(newest.values())


def _of_one_group(found: list[Recording], group: str | None) -> list[Recording]:
    names = sorted({one.owner.group for one in found})
    if group is None and len(names) > 1:
        raise UsageError(f"there are tapes of several groups ({', '.join(names)}); say which with --group")
    return [one for one in found if group is None or one.owner.group == group]


def _as_json(verdict: Verdict) -> dict[str, object]:
    return {
        "number": verdict.number,
        "kind": verdict.kind,
        "took_s": verdict.took_s,
        "usual_s": verdict.usual_s,
        "cause": verdict.cause.value,
        "rank": verdict.rank,
        "plane": verdict.plane,
        "peer": verdict.peer,
        "words": verdict.words,
    }
