"""Writes the execution traces that come with SoftMRC, scenarios/jobs/traces: what ASTRA-sim's first examples run.

    python tools/chakra_example.py

Sixteen ranks gather 1 MiB of each, and eight ranks reduce 1 MiB; each once as one collective, and once in four chunks,
one after the other, which is how ASTRA-sim carries it out.
"""

from __future__ import annotations

from pathlib import Path

from softmrc.sim.chakra_format import COLLECTIVE, COLLECTIVES, ChakraNode, write_nodes

FOLDER = Path(__file__).resolve().parent.parent / "scenarios" / "jobs" / "traces"
SIZE = 1 << 20


def nodes(collective: str, chunks: int) -> list[ChakraNode]:
    found = []
    for number in range(1, chunks + 1):
        attributes = {
            "is_cpu_op": False, "comm_type": COLLECTIVES.index(collective), "comm_size": SIZE // chunks
        }  # fmt: skip
        after = (number - 1,) if number > 1 else ()
        found.append(ChakraNode(number, COLLECTIVE, f"{collective} {number}", after, 0, attributes))
    return found


def write(folder: Path) -> None:
    for name, collective, ranks in (("all-gather", "ALL_GATHER", 16), ("all-reduce", "ALL_REDUCE", 8)):
        for ending, chunks in (("", 1), ("-in-chunks", 4)):
            for rank in range(ranks):
                write_nodes(folder / f"{name}{ending}.{rank}.et", nodes(collective, chunks))


if __name__ == "__main__":
    write(FOLDER)
