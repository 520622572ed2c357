"""Windows of steps: what moves, what stays, and that a run resumes anywhere."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqplan.planner.batches.sampler import START, Sampler
from seqplan.planner.batches.window import SIMILAR, SequenceCosts, WindowSampler, compose

SHORT = 400


def costs_of(sampler: Sampler, rate: float) -> SequenceCosts:
    """Quadratic alone, linear in area, on GPUs that run ``rate`` tokens together per ms."""
    tokens = sampler.lengths.astype(np.float64)
    return SequenceCosts(tokens * (1 + tokens / 2000) / 8, tokens / rate, SHORT)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Sampler, int, SequenceCosts]:
    """Lengths with a long tail, steps of some of them, a window."""
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    n = draw(st.integers(60, 400))
    lengths = np.clip(np.exp(random.normal(5, draw(st.sampled_from([0.6, 1.5])), n)), 1, 9000)
    tokens = min(
        draw(st.integers(3000, 20_000)), int(lengths.astype(np.int64).clip(max=8000).sum())
    )
    sampler = Sampler(lengths.astype(np.int64), tokens, 8000, 7)
    costs = costs_of(sampler, draw(st.sampled_from([10.0, 60.0, 400.0])))
    return sampler, draw(st.integers(1, 6)), costs


@given(runs(), st.integers(0, 40))
def test_steps_keep_their_tokens_and_epochs_their_sequences(
    run: tuple[Sampler, int, SequenceCosts], resumed: int
) -> None:
    sampler, window, costs = run
    steps = 48 // window * window
    drawn = list(sampler.batches(steps))
    windows = WindowSampler(sampler, window, costs, 3)
    composed = list(windows.batches(steps))
    for first in range(0, steps, window):
        before = sorted(i for batch in drawn[first : first + window] for i in batch.ids)
        assert before == sorted(i for b in composed[first : first + window] for i in b.ids)
    moved = 0
    for before, batch in zip(drawn, composed, strict=True):
        assert batch.step == before.step
        assert batch.lengths == tuple(sampler.lengths[list(batch.ids)].tolist())
        outlier_tokens = sum(sampler.lengths[i] for i in set(before.ids) ^ set(batch.ids))
        assert abs(batch.tokens - before.tokens) <= outlier_tokens * (1 - SIMILAR[0])
        moved += len(set(batch.ids) - set(before.ids))
        if batch.ids == before.ids:
            assert batch == before
    report = windows.report()
    assert (report.steps, report.moved_sequences) == (steps, moved)
    assert report.largest_delay < window
    assert report.mean_delay <= report.largest_delay
    again = list(islice(WindowSampler(sampler, window, costs, 3).resume(resumed), 4))
    assert again == composed[resumed : resumed + 4]


def test_outliers_gather_where_one_bounds_the_step_anyway() -> None:
    lengths = np.array([8000, *[100] * 400, 7900, *[100] * 400, 7800, *[100] * 400], dtype=np.int64)
    steps = [np.arange(401), np.arange(401, 802), np.arange(802, 1203)]
    alone, area = lengths / 10, lengths / 100
    costs = SequenceCosts(alone, area, 100)
    composed = compose(steps, lengths, costs, np.random.default_rng(0))
    assert {0, 401, 802} <= set(composed[0].tolist())
    assert [int(lengths[ids].sum()) for ids in composed] == [48_000, 47_900, 47_800]
    # With no GPU-time to spare in the step of the longest, they stay.
    tight = SequenceCosts(alone, lengths / 61, 100)
    stay = compose(steps, lengths, tight, np.random.default_rng(0))
    assert [ids.tolist() for ids in stay] == [ids.tolist() for ids in steps]


def test_a_step_that_meets_an_epochs_end_stays_and_epochs_do_not_mix() -> None:
    lengths = np.array([700, 650, 600, *[50] * 200], dtype=np.int64)
    costs = SequenceCosts(lengths / 10, lengths / 100, 50)
    sampler = Sampler(lengths, 2600, 3000, 0)
    drawn = list(islice(sampler.resume(START), 41))
    composed = list(WindowSampler(sampler, 8, costs, 0).batches(40))
    segments: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    crossing = moved = 0
    for (state, before), (after, _), batch in zip(drawn, drawn[1:], composed, strict=False):
        if after.epoch > state.epoch and after.cursor:
            assert batch == before
            crossing += 1
            continue
        segment = segments.setdefault((batch.step // 8, state.epoch), ([], []))
        segment[0].extend(before.ids)
        segment[1].extend(batch.ids)
        moved += batch.ids != before.ids
    assert crossing > 3
    assert moved > 3
    for before_ids, ids in segments.values():
        assert sorted(before_ids) == sorted(ids)


def test_a_window_needs_a_step_and_costs() -> None:
    sampler = Sampler(np.array([5, 6, 7]), 10, 10, 0)
    costs = costs_of(sampler, 1.0)
    with pytest.raises(ValueError, match="from 1 to 4096 steps, not 0"):
        WindowSampler(sampler, 0, costs, 0)
    with pytest.raises(ValueError, match="not those of the sampler"):
        WindowSampler(Sampler(np.array([5, 6]), 10, 10, 0), 2, costs, 0)
