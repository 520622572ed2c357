"""Replays of recorded steps on a core per rank."""

import pytest

from benchmarks.core_per_rank import Event, StepRecord, replay


def start(seconds: float, number: int, sends: str = "", receives: str = "") -> Event:
    """A transfer on channels that are written as sender and receiver, such as "01"."""

    def channels(text: str) -> tuple[tuple[str, int, int], ...]:
        return tuple(("micro-batch", int(pair[0]), int(pair[1])) for pair in text.split())

    return Event("start", seconds, number, channels(sends), channels(receives))


def wait(seconds: float, number: int) -> Event:
    return Event("wait", seconds, number)


def end(seconds: float) -> Event:
    return Event("end", seconds)


def test_independent_ranks_take_the_time_of_the_slowest() -> None:
    assert replay([StepRecord([end(2.0)]), StepRecord([end(5.0)])]) == 5.0


def test_a_receiver_waits_for_its_sender() -> None:
    sender = StepRecord([start(3.0, 0, sends="01"), wait(3.0, 0), end(4.0)])
    receiver = StepRecord([start(1.0, 0, receives="01"), wait(1.5, 0), end(2.5)])
    # Sent at 3, half a second of receiving, and a second of work.
    assert replay([sender, receiver]) == pytest.approx(4.5)
    assert replay([receiver_of("10"), sender_of("10")]) == pytest.approx(4.5)


def sender_of(channel: str) -> StepRecord:
    return StepRecord([start(3.0, 0, sends=channel), wait(3.0, 0), end(4.0)])


def receiver_of(channel: str) -> StepRecord:
    return StepRecord([start(1.0, 0, receives=channel), wait(1.5, 0), end(2.5)])


def test_messages_of_a_channel_arrive_in_order() -> None:
    sender = StepRecord([start(1.0, 0, sends="01"), start(5.0, 1, sends="01"), end(5.0)])
    receiver = StepRecord(
        [
            start(0.0, 0, receives="01"),
            start(0.0, 1, receives="01"),
            wait(0.0, 1),
            wait(0.0, 0),
            end(1.0),
        ]
    )
    assert replay([sender, receiver]) == pytest.approx(6.0)


def test_ranks_leave_a_meeting_together() -> None:
    early = StepRecord([Event("meet", 1.0), end(2.0)])
    assert replay([early, StepRecord([Event("meet", 4.0), end(4.5)])]) == pytest.approx(5.0)


def test_a_missing_message_is_an_error() -> None:
    with pytest.raises(ValueError, match="no rank sends"):
        replay([receiver_of("10"), StepRecord([end(1.0)])])
