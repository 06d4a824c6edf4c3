"""Collective operations over MRC: every rank of a group calls the same thing, and all get the same result.

    with Group.join(store, rank, size, planes=["127.0.0.1", "127.0.0.2"]) as group:
        group.all_reduce(array).wait()

Data lands by WRITE in its final place (or is added to it while it lands), and WRITE_IMM announces it; native code does
all of it, without the GIL. The order of every reduction depends on ranks and sizes alone, so results are the same bit
for bit whatever the network did. No torch in here.
"""

from softmrc.collectives.block import Block, DType, ReduceOp, as_block
from softmrc.collectives.group import Group
from softmrc.collectives.store import DirectoryStore
from softmrc.collectives.work import CollectiveError, Work

__all__ = ["Block", "CollectiveError", "DType", "DirectoryStore", "Group", "ReduceOp", "Work", "as_block"]
