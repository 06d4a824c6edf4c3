"""What a requester does while nothing answers: two clocks, three wishes, ports in turn, and an end to patience."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import parts
from softmrc.config import RETRY_FOREVER, RtsAttributes, to_native

ProbeAction, Due = parts.ProbeAction, parts.Due
SPAN = 10_000_000  # ps: how long silence may last before it means something
TICK = 1_024_000  # ps
LONGEST_GUESS = 10**11  # ps


def silence(timestamps: bool = True, **attributes: Any) -> Any:
    one = parts.ProbeTimeout(to_native(RtsAttributes(**{"timeout": 8, **attributes})), timestamps)
    one.on_work(0)
    return one


def wait(one: Any, now: int) -> tuple[int, Any]:
    """The next moment at which something is due, and what."""
    at = one.deadline(now, SPAN)
    assert one.due(at - 1, SPAN) == Due.NOTHING
    return at, one.due(at, SPAN)


# spec: timer tail-probe
def test_three_questions_each_after_twice_the_wait_and_then_the_timeout() -> None:
    one = silence()
    now, waits = 0, []
    for _ in range(3):
        at, due = wait(one, now)
        assert due == Due.PROBE
        one.ask(at)
        waits.append(at - now)
        now = at
    assert waits == [SPAN, 2 * SPAN, 4 * SPAN]
    assert wait(one, now) == (TICK << 8, Due.TIMEOUT), "counted from the last progress, not from the last question"
    assert one.is_probing and not one.is_persistent


# spec: tail-probe
def test_a_question_is_asked_as_soon_as_its_answer_settles_something_but_once() -> None:
    """Not before a round trip was measured; nor before what was sent last must have been answered."""
    one = silence()
    settles = 5 * SPAN // 2
    one.on_new_sent(SPAN)
    one.on_progress(2 * SPAN)
    assert one.deadline(2 * SPAN, SPAN, settles) == 3 * SPAN
    one.on_measured()
    assert one.deadline(2 * SPAN, SPAN, settles) == settles and one.due(settles - 1, SPAN, settles) == Due.NOTHING
    assert one.due(settles, SPAN, settles) == Due.PROBE
    one.on_new_sent(2 * SPAN)
    assert one.deadline(2 * SPAN, SPAN, settles) == 3 * SPAN, "something was sent just now"
    one.ask(settles)
    one.on_progress(settles + SPAN // 2)
    assert one.deadline(3 * SPAN, SPAN, settles) == settles + SPAN // 2 + SPAN, "it has been probed since then"
    for _ in range(3):
        one.ask(4 * SPAN)
    assert one.deadline(4 * SPAN, SPAN, 5 * SPAN) == 5 * SPAN, "though three have been in vain"
    assert one.due(5 * SPAN, SPAN) == Due.NOTHING


@pytest.mark.parametrize(("linear", "exponential"), [(0, 0), (3, 0), (0, 4), (7, 5)])
def test_patience_has_as_many_timeouts_as_were_given(linear: int, exponential: int) -> None:
    one = silence(retry_linear=linear, retry_exponential=exponential)
    lengths = []
    while len(lengths) < 100:
        lengths.append(one.timeout(SPAN))
        if not one.on_timeout(0):
            break
    base = TICK << 8
    assert len(lengths) == linear + exponential + 1
    assert lengths == [base] * linear + [base << n + 1 for n in range(exponential + 1)]


def test_one_that_is_patient_for_ever_asks_once_a_second_at_last() -> None:
    one = silence(retry_linear=1, retry_exponential=RETRY_FOREVER)
    assert all(one.on_timeout(0) for _ in range(200))
    assert one.timeout(SPAN) == 10**12


@pytest.mark.parametrize("timeout", [0, 8, 24])
def test_a_timeout_is_never_shorter_than_two_silences_and_never_overflows(timeout: int) -> None:
    one = silence(timeout=timeout, retry_linear=0, retry_exponential=24)
    before = 0
    while True:
        for span in (1, SPAN, 10**13):
            assert 2 * span <= one.timeout(span) <= max(TICK << 24, 2 * span)
        assert one.timeout(SPAN) >= before
        before = one.timeout(SPAN)
        if not one.on_timeout(0):
            break


def test_the_first_question_is_a_copy_and_the_others_are_probes() -> None:
    one = silence()
    assert one.next_action() == ProbeAction.NONE and not one.has_actions
    assert one.ask(SPAN), "it is about packets in flight"
    assert one.next_action() == one.next_action() == ProbeAction.COPY, "a wish stays one until it is granted"
    one.on_action_done(ProbeAction.COPY)
    one.ask(2 * SPAN)
    assert one.next_action() == ProbeAction.PROBE
    one.on_action_done(ProbeAction.PROBE)
    assert not one.has_actions


def test_where_a_way_is_found_the_questions_begin_anew() -> None:
    one = silence()
    now = 0
    for _ in range(3):
        now, _ = wait(one, now)
        one.ask(now)
    one.on_path_found(now)
    assert wait(one, now) == (now + SPAN, Due.PROBE)


# spec: timer-unmeasured
def test_a_timer_grows_with_every_answer_that_comes_after_it_until_one_is_measured() -> None:
    one = silence()
    spans = []
    for _ in range(30):
        assert one.on_timeout(0) and one.span(SPAN) == (spans[-1] if spans else SPAN), "a timeout alone says nothing"
        one.on_progress(0)
        one.on_progress(0)
        spans.append(one.span(SPAN))
    assert spans == [min(SPAN << n + 1, LONGEST_GUESS) for n in range(30)]
    assert one.span(3 * LONGEST_GUESS) == 3 * LONGEST_GUESS, "what was measured is never made shorter"
    one.on_measured()
    assert one.span(SPAN) == SPAN
    one.on_timeout(0)
    one.on_progress(0)
    assert one.span(SPAN) == SPAN, "from then on what is measured counts"


def test_a_copy_is_not_wished_for_where_nothing_is_in_flight_any_more() -> None:
    one = silence()
    one.ask(SPAN)
    assert one.next_action(has_packets_in_flight=False) == ProbeAction.NONE and not one.has_actions


@pytest.mark.parametrize("timestamps", [True, False])
def test_without_timestamps_there_is_one_copy_until_something_new_is_sent(timestamps: bool) -> None:
    one = silence(timestamps)
    seen = []
    for is_new in (False, False, True):
        if is_new:
            one.on_new_sent()
        one.ask(SPAN)
        seen.append(one.next_action())
        one.on_action_done(seen[-1])
        one.on_progress(SPAN)
    assert seen == ([ProbeAction.COPY] * 3 if timestamps else [ProbeAction.COPY, ProbeAction.PROBE, ProbeAction.COPY])


def test_a_confirmation_is_solicited_only_while_it_is_all_that_is_missing() -> None:
    one = silence()
    assert not one.ask(SPAN, has_packets_in_flight=False)
    assert one.next_action(False, can_solicit=True) == ProbeAction.SOLICITATION
    assert one.next_action(False, can_solicit=False) == ProbeAction.NONE
    assert one.next_action(False, can_solicit=True) == ProbeAction.NONE, "the wish is forgotten with its reason"
    assert not one.ask(SPAN, has_packets_in_flight=False, has_open_operation=False) and not one.has_actions


def test_only_the_newest_probe_is_answered_and_only_once() -> None:
    one = silence()
    first, second = one.on_probe_sent(5, 1), one.on_probe_sent(7, 2)
    assert one.on_probe_answer(first) is None
    one.on_retired(2, 9)
    assert one.on_probe_answer(second) == (7, 9), "with the path that is now called something else"
    assert one.on_probe_answer(second) is None


def test_no_probe_is_answered_before_one_was_sent() -> None:
    assert silence().on_probe_answer(0) is None


def test_questions_go_by_ports_not_asked_since_the_last_answer() -> None:
    one = silence()
    one.on_probed(0)
    one.on_probed(3)
    assert one.unprobed(0b1111) == 0b0110
    one.on_probe_answer(one.on_probe_sent(1, 0))
    assert one.unprobed(0b1111) == 0b1111


# spec: nack-backoff
@pytest.mark.parametrize(("timeout", "longest"), [(12, 420), (20, 4096)])
def test_a_peer_that_takes_nothing_is_left_alone_twice_as_long_each_time(timeout: int, longest: int) -> None:
    """Up to a timeout, and up to 4 096 silences."""
    one = silence(timeout=timeout)
    one.on_receiver_not_ready(0, 1, SPAN)
    assert not one.is_backing_off(0), "the first is retransmitted at once"
    now, lengths = 0, []
    for _ in range(16):
        one.on_receiver_not_ready(now, 2, SPAN)
        one.on_receiver_not_ready(now, 2, SPAN)  # while it holds back, another changes nothing
        end = now
        while one.is_backing_off(end):
            end += SPAN
        lengths.append((end - now) // SPAN)
        now = end
    assert lengths == [min(1 << n, longest) for n in range(16)]
    one.on_progress(now)
    one.on_receiver_not_ready(now, 2, SPAN)
    assert one.is_backing_off(now + SPAN - 1) and not one.is_backing_off(now + SPAN)


# spec: nack-backoff
def test_trims_are_answers_but_no_progress() -> None:
    """Probes without an answer are repeated; the timeout is counted from the last progress. A packet that was trimmed
    three times goes again at once."""
    one = silence()
    for at in (SPAN, 3 * SPAN):
        one.ask(at)
    one.on_trimmed(4 * SPAN, 3, SPAN)
    assert not one.is_probing and not one.is_backing_off(4 * SPAN)
    assert wait(one, 4 * SPAN) == (5 * SPAN, Due.PROBE)
    one.on_trimmed(5 * SPAN, 4, SPAN)
    assert one.is_backing_off(6 * SPAN - 1) and not one.is_backing_off(6 * SPAN)
    one.on_trimmed(6 * SPAN, 5, SPAN)
    assert one.is_backing_off(8 * SPAN - 1) and not one.is_backing_off(8 * SPAN)
    for at in range(7 * SPAN, TICK << 8, SPAN // 2):
        one.on_trimmed(at, 9, SPAN)
    assert one.due(TICK << 8, SPAN) == Due.TIMEOUT
    one.on_progress(TICK << 8)
    one.on_trimmed((TICK << 8) + SPAN, 9, SPAN)
    assert not one.is_backing_off((TICK << 8) + SPAN), "not where something arrives in between"
    one.on_trimmed((TICK << 8) + SPAN + 1, 9, SPAN)
    assert one.is_backing_off((TICK << 8) + SPAN + 1)


@pytest.mark.parametrize("seed", range(30))
def test_after_progress_nothing_of_the_silence_is_left(seed: int) -> None:
    """Whatever happened, progress puts clocks, retries, ports and holds where they were at first."""
    rng = Random(seed)
    one, fresh = silence(timeout=10), silence(timeout=10)
    now = 0
    for _ in range(rng.randrange(1, 40)):
        now += rng.randrange(SPAN)
        happenings: list[tuple[Any, ...]] = [
            (one.ask, now, rng.random() < 0.5, rng.random() < 0.5),
            (one.on_timeout, now),
            (one.on_sent, now),
            (one.on_probed, rng.randrange(16)),
            (one.on_receiver_not_ready, now, rng.randrange(1, 4), SPAN),
            (one.on_trimmed, now, rng.randrange(1, 8), SPAN),
            (one.on_probe_sent, now, rng.randrange(8)),
        ]
        happens, *arguments = rng.choice(happenings)
        happens(*arguments)
    one.on_progress(now)
    fresh.on_progress(now)
    assert not one.is_probing and not one.is_persistent and not one.is_backing_off(now)
    assert one.unprobed(0xFFFF) == 0xFFFF
    assert one.timeout(SPAN) == fresh.timeout(SPAN)
    assert one.deadline(now, SPAN) == fresh.deadline(now, SPAN)
