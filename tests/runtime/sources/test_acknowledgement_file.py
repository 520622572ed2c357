"""Acknowledgements on a disk without room: each that was accepted is read again."""

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from seqplan.runtime.sources.acknowledgements import Acknowledgement, AcknowledgementFile


def entry(number: int) -> Acknowledgement:
    return Acknowledgement("/acks", f"key-{number}", "x" * 300, f"step {number}")


@pytest.fixture
def limited() -> Iterator[None]:
    """A writer of more than the limit gets an error, after the bytes that fit."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, before)


def limit(size: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))


@pytest.mark.usefixtures("limited")
def test_a_line_that_does_not_fit_is_no_part_of_the_file(tmp_path: Path) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = AcknowledgementFile(tmp_path, "job")
    limit(1000)
    accepted = []
    for number in range(6):
        try:
            file.append(entry(number))
            accepted.append(number)
        except OSError:
            limit(most)  # there is room again
    file.close()
    assert accepted == [0, 1, 3, 4, 5]
    following = AcknowledgementFile(tmp_path, "job")
    following.adopt_left()
    assert list(following.entries) == [entry(number) for number in accepted]
    following.close()


@pytest.mark.usefixtures("limited")
def test_what_could_not_be_taken_over_is_taken_over_once(tmp_path: Path) -> None:
    left = AcknowledgementFile(tmp_path, "job")
    for number in range(6):
        left.append(entry(number))
    left.close()
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = AcknowledgementFile(tmp_path, "job")
    limit(1000)
    with pytest.raises(OSError, match=r"too large|bytes written"):
        file.adopt_left()
    limit(most)
    file.adopt_left()
    assert list(file.entries) == [entry(number) for number in range(6)]
    file.close()
