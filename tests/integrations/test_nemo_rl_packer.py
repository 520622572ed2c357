"""NeMo-RL's bins, planned: their invariants, and batches that its packer gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqplan import Cost
from seqplan.integrations import nemo_rl
from seqplan.integrations.versions import UnsupportedVersion

COST = Cost(2e-6, 0.1, 60.0)


class Fallback:
    """A packer as NeMo-RL publishes it: ``pack``, and attributes."""

    bin_capacity = 7

    def pack(self, sequence_lengths: list[int]) -> list[list[int]]:
        return [list(range(len(sequence_lengths)))]


@given(
    lengths=st.lists(st.integers(1, 200), min_size=8, max_size=60),
    ranks=st.sampled_from([1, 2, 4, 8]),
    room=st.integers(0, 300),
)
def test_bins_hold_every_sequence_once(lengths: list[int], ranks: int, room: int) -> None:
    capacity = max(lengths) + room
    bins = nemo_rl.PlannedPacker(capacity, ranks, COST, Fallback()).pack(lengths)
    assert sorted(place for members in bins for place in members) == list(range(len(lengths)))
    if len(bins) == 1 and ranks > 1:
        return  # NeMo-RL's packer: too few sequences
    assert len(bins) % ranks == 0
    assert all(0 < sum(lengths[i] for i in members) <= capacity for members in bins)


def test_bins_that_run_together_take_equally_long() -> None:
    packer = nemo_rl.PlannedPacker(4096, 2, COST, Fallback())
    assert packer.pack([4000, 2000, 4000, 2000]) == [[0], [2], [1], [3]]
    assert nemo_rl.figures["imbalance"] == 0.0
    assert packer.bin_capacity == 7


def test_other_batches_are_packed_by_nemo_rl(caplog: pytest.LogCaptureFixture) -> None:
    assert nemo_rl.PlannedPacker(10, 4, COST, Fallback()).pack([5, 5]) == [[0, 1]]
    assert "2 sequences are too few for 4 ranks" in caplog.text


def test_absent_nemo_rl_is_named() -> None:
    with pytest.raises(UnsupportedVersion, match=r"has no get_packer in nemo_rl\.data\.packing"):
        nemo_rl.install(COST)
