"""Messages from posting to confirmation, beside a plain list of them."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest

import parts


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_list_that_a_plain_model_keeps(seed: int) -> None:
    rng = Random(seed)
    queue = parts.SendQueue()
    model: deque[list[int]] = deque()  # wr_id, MSN, RQMSN, packets left, packets, has an immediate
    msn = rqmsn = psn = 0
    for step in range(4_000):
        cutting = next((one for one in model if one[3]), None)
        begun = [one for one in model if one[3] < one[4]]
        immediates = sum(one[5] for one in begun)
        assert len(queue) == len(model)
        assert queue.is_cut == (cutting is None)
        assert queue.is_at_first == (cutting is None or cutting[3] == cutting[4])
        assert queue.has_begun == bool(begun)
        assert queue.has_sent_operation == (bool(model) and model[0][3] == 0)
        for most in (1, 2, 5):
            waits = cutting is not None and bool(cutting[5]) and cutting[3] == cutting[4] and immediates >= most
            assert queue.waits_for_immediates(most) == waits
        match rng.randrange(4):
            case 0:
                packets, has_imm = rng.randrange(1, 5), rng.random() < 0.5
                queue.push(step, packets, has_imm)
                model.append([step, msn, rqmsn, packets, packets, has_imm])
                msn = (msn + 1) & 0xFFFF
                rqmsn = (rqmsn + has_imm) & 0xFFFF
            case 1 | 2 if cutting is not None:
                assert queue.cut(psn) == cutting[0]
                cutting[3] -= 1
                psn = (psn + 1) & 0xFFFFFF
            case 3 if model and model[0][3] == 0:
                queue.confirm()
                model.popleft()
        if step % 50 == 0:
            assert queue.rows() == [(one[0], one[1], one[2], one[3] == 0, one[0]) for one in model]


def test_numbers_of_messages_wrap() -> None:
    queue = parts.SendQueue()
    for number in range(70_000):
        queue.push(number, 1, True)
        queue.cut(number & 0xFFFFFF)
        if number >= 2:
            queue.confirm()
    assert queue.rows() == [(n, n & 0xFFFF, n & 0xFFFF, True, n) for n in (69_998, 69_999)]
