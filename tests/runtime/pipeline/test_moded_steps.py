"""Steps whose micro-batches have modes on real ranks, against the same steps without modes."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from moded_plans import set_modes
from random_plans import one_pipeline_plan
from ranks import run_ranks
from staged_runs import CONFIG, Case, SequenceParallelCase

from seqplan import Plan, Scheme, rank_view
from seqplan.plans.recomputation import MODES
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.errors import PlanError
from seqplan.runtime.models.llama import Llama
from seqplan.runtime.pipeline.staged_llama import StagedLlama
from seqplan.runtime.recomputation import OFFLOAD
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.training.prepare import make_preparer
from seqplan.runtime.training.run_step import StepResult, run_step

MIXED = (*MODES, "elementwise+0.5", "none+1")
SOME = 100_000
SMALL = replace(CONFIG, layers=2)
STAGED = tuple(
    Case(4, seed, dtype, SMALL, steps=2, by_messages=messages)
    for seed, dtype, messages in ((35, torch.float32, False), (91, torch.bfloat16, True))
)
WHOLE = (SequenceParallelCase(4, 2, torch.float32, SMALL, steps=2, reduce="micro-batch"),)


@dataclass(frozen=True)
class Ran:
    """The steps of a rank, its micro-batches' modes by the plans, and the parameters at the end."""

    results: list[StepResult]
    planned: list[list[str | None]]
    parameters: dict[str, torch.Tensor]


def run(rank: int, groups: Communicators, case: Case, plans: list[Plan]) -> Ran:
    model = case.model(case.seed)
    states: Any
    if isinstance(case, SequenceParallelCase):
        states = ShardedStates(model, groups.states, reduce=case.reduce)
        prepare: Any = make_preparer(
            SeededTokens(case.config.vocab, 5),
            Peers(groups.attention),
            heads=case.config.heads,
            kv_heads=case.config.kv_heads,
            modes=(*MODES, OFFLOAD),
        )
    else:
        job = StagedLlama(model, groups, tensor_degrees=(2,), by_messages=case.by_messages)
        states, prepare = job.states, job.make_preparer(SeededTokens(case.config.vocab, 5))
    optimizer = case.optimizer(states.master_parameters())
    results, planned = [], []
    for plan in plans:
        view = rank_view(plan, rank)
        if isinstance(case, SequenceParallelCase):
            work = prepare(view)
            results.append(run_step(view, work, model, states, optimizer, count_saved=True))
        else:
            results.append(job.run_step(view, prepare(view), optimizer, count_saved=True))
        planned.append([b.recompute for pipeline in view.pipelines for b in pipeline.micro_batches])
    return Ran(results, planned, dict(states.export()))


def run_all(rank: int, world_size: int, cases: tuple[Case, ...]) -> list[dict[str, Ran]]:
    groups = Communicators.create()
    outcomes = []
    for case in cases:
        variants = {"settings": case.plans()} if case == cases[0] else {}
        for name, modes in (("none", ["none"]), ("mixed", MIXED), ("full", ["full"])):
            variants[name] = [set_modes(plan, modes, plan.step) for plan in case.plans()]
        outcomes.append({name: run(rank, groups, case, plans) for name, plans in variants.items()})
    return outcomes


@pytest.fixture(scope="module")
def outcomes() -> list[tuple[Case, list[dict[str, Ran]]]]:
    cases = (*STAGED, *WHOLE)
    by_rank = run_ranks(run_all, 4, cases, timeout_s=150)
    return [(case, [ran[at] for ran in by_rank]) for at, case in enumerate(cases)]


Outcomes = list[tuple[Case, list[dict[str, Ran]]]]


def test_every_kind_of_scheme_is_among_the_plans() -> None:
    schemes = [p.scheme for case in STAGED for plan in case.plans() for p in plan.pipelines]
    for degree in ("tp", "pp", "ring", "ulysses"):
        assert any(getattr(scheme, degree) > 1 for scheme in schemes), degree


def test_training_is_bit_for_bit_that_without_modes(outcomes: Outcomes) -> None:
    for case, ranks in outcomes:
        for ran in ranks:
            for name in ran:
                for one, other in zip(ran[name].results, ran["none"].results, strict=True):
                    assert (one.loss, one.gradient_norm) == (other.loss, other.gradient_norm), case
        first = ranks[0]
        for name in first:
            for parameter, value in first["none"].parameters.items():
                assert torch.equal(first[name].parameters[parameter], value), (case, name)


def test_each_micro_batch_runs_under_its_mode(outcomes: Outcomes) -> None:
    """By the bytes that it keeps, between those without and with recomputing everything."""
    seen = set()
    for _, ranks in outcomes:
        for ran in ranks:
            for step, planned in enumerate(ran["mixed"].planned):
                none, mixed, full = (
                    ran[name].results[step].micro_batches for name in ("none", "mixed", "full")
                )
                assert [report.recompute for report in mixed] == planned
                for most, moded, least in zip(none, mixed, full, strict=True):
                    seen.add(moded.recompute)
                    if moded.recompute in ("none", "full"):
                        expected = {"none": most, "full": least}[moded.recompute].saved_bytes
                        assert moded.saved_bytes == expected
                    elif most.saved_bytes > SOME:  # not on a rank without tokens
                        assert moded.saved_bytes < most.saved_bytes
                        if moded.recompute in MODES:
                            assert least.saved_bytes < moded.saved_bytes
                            assert moded.offloaded_bytes == 0
                        else:
                            assert moded.offloaded_bytes > SOME / 4
    assert seen == set(MIXED)


def run_offloaded(rank: int, world_size: int) -> list[tuple[int, float]]:
    """Bytes on the host, and the loss, of a layer on each of two stages."""
    groups = Communicators.create()
    results = []
    for mode in ("full+1", "full"):
        torch.manual_seed(0)
        job = StagedLlama(Llama(SMALL), groups)
        optimizer = torch.optim.SGD([owned for _, owned in job.states.master_parameters()], lr=0.1)
        prepare = job.make_preparer(SeededTokens(SMALL.vocab, 5))
        for step in range(2):
            plan = set_modes(one_pipeline_plan(Scheme(pp=2), [300], step=step), [mode])
            view = rank_view(plan, rank)
            result = job.run_step(view, prepare(view), optimizer, count_saved=True)
        results.append((result.micro_batches[0].offloaded_bytes, result.loss))
    return results


def test_states_of_the_stage_before_are_offloaded() -> None:
    for offloaded, kept in run_ranks(run_offloaded, 2):
        assert offloaded == (300 * SMALL.hidden * 4, kept[1])
        assert kept[0] == 0


def prepare_unknown(rank: int, world_size: int) -> str:
    case = WHOLE[0]
    prepare = make_preparer(SeededTokens(case.config.vocab, 5), Peers(None), heads=8, kv_heads=2)
    view = rank_view(set_modes(one_pipeline_plan(Scheme(), [3, 4]), ["none"]), 0)
    try:
        prepare(view)
    except PlanError as error:
        return str(error)
    return ""


def test_a_module_that_declares_no_mode_rejects_them() -> None:
    assert prepare_unknown(0, 1) == (
        "step 0, pipeline 0: the model cannot apply recomputation mode: none. Plan with one mode"
    )
