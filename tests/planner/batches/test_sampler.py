"""Batches drawn from lengths: without replacement, repeatable, within their tokens."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqplan.planner.batches.sampler import START, Sampler, SamplerState

LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=40)


def sampler_of(lengths: list[int], tokens: int, max_len: int, seed: int) -> Sampler:
    """Draw steps of ``tokens``, or of all the data if it has fewer."""
    total = sum(min(length, max_len) for length in lengths)
    return Sampler(np.array(lengths), min(tokens, total), max_len, seed)


@given(LENGTHS, st.integers(1, 200), st.integers(1, 60), st.integers(0, 5))
def test_each_epoch_uses_every_sequence_once(
    lengths: list[int], tokens: int, max_len: int, seed: int
) -> None:
    sampler = sampler_of(lengths, tokens, max_len, seed)
    drawn: list[int] = []
    for batch in sampler.batches():
        drawn.extend(batch.ids)
        if len(drawn) >= 3 * len(lengths):
            break
    for epoch in range(3):
        ids = drawn[epoch * len(lengths) : (epoch + 1) * len(lengths)]
        assert sorted(ids) == list(range(len(lengths)))


@given(LENGTHS, st.integers(1, 200), st.integers(1, 60))
def test_steps_keep_their_tokens_and_stop_only_when_full(
    lengths: list[int], tokens: int, max_len: int
) -> None:
    sampler = sampler_of(lengths, tokens, max_len, seed=1)
    tokens = min(tokens, int(sampler.lengths.sum()))
    assert sampler.truncated == sum(length > max_len for length in lengths)
    steps = list(sampler.batches(12))
    assert [batch.step for batch in steps] == list(range(12))
    for batch, following in itertools.pairwise(steps):
        assert batch.lengths == tuple(min(lengths[i], max_len) for i in batch.ids)
        assert batch.tokens <= tokens or len(batch.ids) == 1
        assert batch.tokens + following.lengths[0] > tokens


@given(LENGTHS, st.integers(1, 200), st.integers(0, 9))
def test_the_same_seed_gives_the_same_steps(lengths: list[int], tokens: int, seed: int) -> None:
    first, again = (list(sampler_of(lengths, tokens, 50, seed).batches(5)) for _ in range(2))
    assert first == again
    assert list(sampler_of(lengths, tokens, 50, seed).batches(8))[:5] == first


def test_seeds_and_epochs_differ() -> None:
    lengths = np.ones(50, dtype=np.int64)
    orders = {
        tuple(batch.ids) for seed in range(3) for batch in Sampler(lengths, 50, 9, seed).batches(3)
    }
    assert len(orders) == 9


def test_impossible_draws_are_rejected() -> None:
    with pytest.raises(ValueError, match="tokens per step must be 1 or more, not 0"):
        Sampler(np.array([1]), 0, 1, 0)
    with pytest.raises(ValueError, match="longest sequence must be 1 or more tokens, not 0"):
        Sampler(np.array([1]), 1, 0, 0)
    for steps in (0, 10**30):
        with pytest.raises(ValueError, match="steps must be "):
            Sampler(np.array([9]), 5, 9, 0).batches(steps)
    with pytest.raises(ValueError, match="no sequences"):
        Sampler(np.array([], dtype=np.int64), 1, 1, 0)
    with pytest.raises(ValueError, match="the data has 9 tokens, fewer than a step of 10, which"):
        Sampler(np.array([7, 4]), 10, 5, 0)
    assert next(Sampler(np.array([7, 4]), 9, 5, 0).batches()).tokens == 9


@given(LENGTHS, st.integers(1, 200), st.integers(0, 5), st.integers(0, 12))
def test_going_on_from_a_state_gives_the_same_steps(
    lengths: list[int], tokens: int, seed: int, step: int
) -> None:
    going = list(itertools.islice(sampler_of(lengths, tokens, 50, seed).resume(START), 16))
    state = going[step][0]
    resumed = list(itertools.islice(sampler_of(lengths, tokens, 50, seed).resume(state), 16 - step))
    assert resumed == going[step:]
    assert [batch for _, batch in going] == list(sampler_of(lengths, tokens, 50, seed).batches(16))
    for earlier, _ in going[: step + 1]:
        assert sampler_of(lengths, tokens, 50, seed).state_before(step, earlier) == state


@given(LENGTHS, st.integers(1, 200))
def test_a_state_counts_drawn_sequences(lengths: list[int], tokens: int) -> None:
    drawn = 0
    for state, batch in itertools.islice(sampler_of(lengths, tokens, 50, 0).resume(START), 9):
        assert drawn == state.epoch * len(lengths) + state.cursor
        drawn += len(batch.ids)


def test_a_state_of_other_data_is_rejected() -> None:
    sampler = Sampler(np.array([5, 6]), 5, 9, 0)
    for state in (SamplerState(1, 0, 2), SamplerState(1, -1, 0), SamplerState(-1, 0, 0)):
        with pytest.raises(ValueError, match="2 sequences have no state"):
            sampler.resume(state)
    with pytest.raises(ValueError, match="step 2 is before the known state's, 3"):
        sampler.state_before(2, SamplerState(3, 1, 0))
