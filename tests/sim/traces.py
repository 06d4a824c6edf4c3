"""Runs of tests/sim/native/trace.cpp whose trace must not depend on who compiled it, how, or for what."""

from __future__ import annotations

# transport, seed, planes, hosts, hosts a leaf, spines, Gb/s, message bytes, EVs, and whether links fail
RUNS = {
    "mrc": "mrc 7 4 32 4 4 100 400000 32 faults",
    "mrc of one plane": "mrc 8 1 32 8 4 400 400000 16",
    "collectives": "ranks 7 4 32 4 4 100 4000000 32 faults",
    "small collectives": "ranks 7 2 32 4 4 100 4096 32",
    "roce": "roce 9 1 32 4 4 400 400000 16 faults",
}
