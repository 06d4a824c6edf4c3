"""The flight recorder of a group's rank, and what it tells afterwards: why an operation was slow.

`SOFTMRC_RECORD=1` turns it on. Each rank then keeps a file of fixed size beside its control socket, in which the newest
overwrites the oldest: its operations, fifty samples a second of what its device counted and of how long its threads
waited for a processor, and notes of what happened to paths. `softmrc explain` reads the files of all ranks together.
"""
