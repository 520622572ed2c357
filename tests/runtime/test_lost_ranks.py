"""A dead rank ends a job whose other ranks wait for the device."""

from pathlib import Path

import pytest
from trainers import Trainer, launched

RANKS = 4


@pytest.mark.parametrize("end", ["block", "raise"])
def test_dead_rank_ends_all_others(end: str) -> None:
    """By ``kill -9``, and by an exception; no call of the other ranks fails."""
    codes, outputs = run(end, kill=end == "block")
    assert codes[1] == (-9 if end == "block" else 1)
    assert [codes[rank] for rank in (0, 2, 3)] == [1, 1, 1]
    assert "rank 1 has ended; see the log of the rank that ended first" in outputs[0] + outputs[2]
    assert all(output.count("a rank is lost") == 1 for output in (outputs[0], *outputs[2:]))


def test_ranks_that_end_in_order_do_not_end_others() -> None:
    codes, outputs = run("return", kill=False)
    assert codes == [0] * RANKS
    assert all("left" in output and "lost" not in output for output in outputs)


def run(end: str, *, kill: bool) -> tuple[list[int | None], list[str]]:
    """Exit codes and outputs, in rank order."""
    ranks: list[Trainer] = launched(RANKS, Path(__file__).with_name("watched.py"), [end])
    try:
        outputs = []
        if kill:
            assert [rank.output.readline() for rank in ranks] == ["ready\n"] * RANKS
            ranks[1].process.kill()
        for rank in ranks:
            outputs.append(rank.output.read())
            rank.process.join(60)
        return [rank.process.exitcode for rank in ranks], outputs
    finally:
        for rank in ranks:
            rank.end()
