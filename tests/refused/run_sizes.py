"""A peer probes packet sizes again and again, and the probed device has no socket buffer left to answer."""

from __future__ import annotations

import calls
from refusing import UNTIL_ALLOWED, refused, until

from softmrc.device import Device

PLANES = ["127.0.0.1", "127.0.0.2"]
SIZE, QUESTIONS = 4096, 50


def packets(device: Device, what: str) -> int:
    return sum(row[what] for row in device.planes())


def main() -> None:
    with Device(PLANES, lanes=1) as asks, Device(PLANES, lanes=1) as answers:
        qps = [one.create_qp(one.create_cq()) for one in (asks, answers)]
        peers = [one.add_peer(other.reached_at) for one, other in zip((asks, answers), reversed(qps), strict=True)]
        places = [plane.native() for plane in peers[0].planes]

        def ask(times: int) -> int:
            """How many answers there were, once all questions have come."""
            came, sent = packets(answers, "packets_received"), packets(answers, "packets_sent")
            survey = asks._native.survey_sizes(0, places)
            asks._native.ask_sizes(0, survey, [SIZE] * times)
            until(lambda: packets(answers, "packets_received") - came >= times * len(PLANES), "all questions come")
            asks._native.end_survey(0, survey)
            return packets(answers, "packets_sent") - sent

        assert ask(4) == 4 * len(PLANES)
        with refused("sendmmsg", calls.EAGAIN, "softmrc", times=UNTIL_ALLOWED):
            assert ask(QUESTIONS) <= len(PLANES), "the first of each plane waits for room, and no other"
        until(lambda: ask(1) == len(PLANES), "there is room again")
    print("done")


main()
