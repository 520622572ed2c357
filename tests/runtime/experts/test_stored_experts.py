"""Checkpoints and weights of split experts, read by other degrees and other numbers of ranks."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from expert_runs import ROUTED, split_plan
from random_plans import one_pipeline_plan
from ranks import run_ranks
from staged_runs import adamw

from seqplan import Scheme, rank_view
from seqplan.runtime.checkpoint.save_restore import Cursor, restore, save
from seqplan.runtime.checkpoint.weights import save_weights
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.models.llama import Llama
from seqplan.runtime.pipeline.staged_llama import StagedLlama

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

Outcome = tuple[list[float], dict[str, torch.Tensor], int]
SCHEMES = (Scheme(ulysses=2), Scheme(tp=2), Scheme(ring=2), Scheme(ulysses=2))


def train(
    rank: int,
    world_size: int,
    degree: int,
    first: int,
    steps: int,
    folder: Path,
    weights: Path | None,
) -> Outcome:
    """Steps from ``first`` on, from a checkpoint or, on the meta device, from weights."""
    groups = Communicators.create()
    torch.manual_seed(rank)
    with torch.device("meta" if weights is not None else "cpu"):
        model = Llama(ROUTED).double()
    job = StagedLlama(
        model,
        groups,
        device=torch.device("cpu"),
        by_messages=True,
        expert_parallel=degree,
        weights=weights,
    )
    optimizer = adamw(job.states.master_parameters())
    cursor = None if weights is not None else restore(folder, job.states, optimizer, groups.control)
    assert (0 if cursor is None else cursor.next_step) == first
    prepare = job.make_preparer(SeededTokens(ROUTED.vocab, 5))
    losses = []
    for step in range(first, first + steps):
        scheme = SCHEMES[step] if world_size > 1 else Scheme()
        plan = one_pipeline_plan(scheme, [9, 4, 17], step=step, packed=False)
        plan = replace(plan, world_size=world_size, idle_ranks=tuple(range(2, world_size)))
        view = rank_view(split_plan(plan, degree), rank)
        losses.append(job.run_step(view, prepare(view), optimizer, clip_norm=1.0).loss)
    save(folder, Cursor(first + steps, None), job.states, optimizer, groups.control)
    if not first:
        save_weights(folder / "weights", job.states, groups.control)
    largest = max(unit.flat.numel() for unit in job.states.units if unit.name.endswith("experts"))
    return losses, dict(job.states.export()), largest


LAYER = ROUTED.experts * 3 * ROUTED.expert_ffn * ROUTED.hidden
"""Elements of a layer's experts."""


def test_other_degrees_and_ranks_go_on(tmp_path: Path) -> None:
    whole, split = tmp_path / "whole", tmp_path / "split"
    ((expected, parameters, largest),) = run_ranks(train, 1, 1, 0, 4, whole, None)
    assert largest == LAYER
    losses, stored = [], []
    for world_size, degree, first in ((4, 2, 0), (2, 1, 1), (8, 8, 2), (4, 4, 3)):
        outcomes = run_ranks(train, world_size, degree, first, 1, split, None)
        losses += outcomes[0][0]
        stored.append(outcomes[0][1])
        assert {outcome[2] for outcome in outcomes} == {LAYER // degree}
    assert losses == pytest.approx(expected, rel=1e-13)
    assert stored[-1].keys() == parameters.keys()
    for name, value in parameters.items():
        torch.testing.assert_close(stored[-1][name], value, rtol=0, atol=1e-12)
    # Its weights after one step are read without a whole model.
    outcomes = run_ranks(train, 4, 4, 0, 0, tmp_path / "second", split / "weights")
    assert {outcome[2] for outcome in outcomes} == {0}  # no step has gathered anything
    exported = outcomes[0][1]
    assert exported.keys() == stored[0].keys()
    assert all(torch.equal(exported[name], value) for name, value in stored[0].items())
