"""The bound by micro-step: never above the best, and closer than the bound over all."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from micro_step_cases import MicroStepCase, find_least_ms, list_models, micro_step_cases
from step_lengths import draw_clipped

from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.bounds.micro_step_program import PLACES, _count_places
from seqplan.planner.lockstep.plan_micro_steps import plan_micro_steps
from seqplan.planner.lockstep.proof import CLOSE, QUICK, ProofSettings, prove_micro_steps

STRETCHED = [93_000, 41_000, 30_000, 22_000, 15_000, 9_000] + [2_200] * 40 + [900] * 120
ALWAYS = [replace(some, few=100, near=0.0, enough=0.0) for some in (QUICK, CLOSE)]


@pytest.mark.parametrize("proof", [QUICK, *ALWAYS])
@settings(max_examples=27)
@given(micro_step_cases((1, 2, 3)))
def test_it_is_never_above_the_best_micro_steps(proof: ProofSettings, case: MicroStepCase) -> None:
    models, batch, gpus = case
    micro_steps = plan_micro_steps(batch, models, gpus)
    proven = prove_micro_steps(micro_steps, batch, proof)
    assert micro_steps.lower_bound_ms <= proven.lower_bound_ms <= find_least_ms(case) * (1 + 1e-9)
    assert proven.micro_steps == micro_steps.micro_steps


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(1, 60))
def test_places_of_a_micro_batch_are_enough(parts: list[int], room: int) -> None:
    """Shares that sum to at most 1 take at most all places, of each number of them."""
    shares = np.array(parts) / room
    held = shares[np.cumsum(parts) <= room]
    assert (_count_places(held).sum(axis=-1) <= 1 + 1e-12).all()
    alone = _count_places(np.array([1.0]))
    assert alone[..., 0].tolist() == [1.0] * len(PLACES)


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_two_micro_steps_are_within_two_percent_of_their_bound(seed: int) -> None:
    """Groups that hold two or three sequences each: 3.5 to 5 % if all room can be filled."""
    models = list_models("llama-32b-a800-80gb", 64, 32_768, (4, 1))
    batch = Batch.from_lengths(draw_clipped(200_000, seed))
    micro_steps = plan_micro_steps(batch, models, 64)
    assert micro_steps.objective_ms > 1.03 * micro_steps.lower_bound_ms
    quick, close = (prove_micro_steps(micro_steps, batch, some) for some in (QUICK, CLOSE))
    assert quick.objective_ms < 1.02 * quick.lower_bound_ms
    assert quick.lower_bound_ms < close.lower_bound_ms


def test_a_micro_step_that_a_long_sequence_stretches_cannot_be_filled() -> None:
    models = load_shipped("gpt-7b-a100-40gb").usable(64, 196_608)
    batch = Batch.from_lengths(STRETCHED)
    micro_steps = plan_micro_steps(batch, models, 64)
    before = micro_steps.objective_ms / micro_steps.lower_bound_ms - 1
    proven = prove_micro_steps(micro_steps, batch)
    after = proven.objective_ms / proven.lower_bound_ms - 1
    assert before > 0.1
    assert after < 0.002
