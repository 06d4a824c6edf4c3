"""Ctrl-C between any two steps of a thread that waits for a message."""

from __future__ import annotations

import pytest

from interrupting import is_interrupted
from softmrc.connection import connect, connection, listen

LIMIT_S = 20.0


def test_ctrl_c_in_recv_loses_no_message() -> None:
    """Not even one that it had taken and not returned yet. Nor a receive: there are fewer than interruptions."""
    with (
        listen(memory=bytearray(16), max_wimm=8) as listener,
        connect("127.0.0.1", listener.port, max_wimm=8) as a,
        listener.accept(LIMIT_S) as b,
    ):
        step, is_over = 0, False
        while not is_over:
            step += 1
            a.write(a.remote[0], 0, b"x", imm=step)
            is_over = not is_interrupted(step, lambda: b.recv(LIMIT_S), connection.__file__)
            if not is_over:
                assert b.recv(LIMIT_S).imm == step, f"interrupted at step {step}"
            with pytest.raises(TimeoutError):
                b.recv(0)
        assert step > 5
