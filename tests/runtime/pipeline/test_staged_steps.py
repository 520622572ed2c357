"""Steps of any strategies side by side on real ranks, other ones next step, against one process."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from ranks import run_ranks
from staged_runs import CONFIG, GATES, Case, Outcome, differences, staged

HALVED = replace(CONFIG, layers=2)
BFLOAT16 = (
    Case(4, 9, torch.bfloat16, HALVED, steps=2),
    Case(4, 2, torch.bfloat16, HALVED, steps=2, by_messages=False),
)
WHOLE = tuple(replace(case, whole=True) for case in BFLOAT16)

SIX = replace(CONFIG, hidden=96, heads=12, kv_heads=3, ffn=100, layers=3)
CASES = {
    "8 ranks on 2 nodes": Case(8, 12, steps=3, per_node=4),
    "4 ranks, fp32, groups": Case(4, 18, torch.float32, steps=3, by_messages=False),
    "6 ranks, tp 3 and 6": Case(6, 337, config=SIX, steps=3),
    "6 ranks on 2 nodes, fp32": Case(6, 337, torch.float32, SIX, steps=2, per_node=3),
    "4 ranks, one key head, tied": Case(
        4, 4, config=replace(CONFIG, heads=4, kv_heads=1, tied=True, recompute="full"), steps=3
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_training_is_that_of_one_process(case: Case) -> None:
    schemes = {pipeline.scheme for plan in case.plans() for pipeline in plan.pipelines}
    assert any(scheme.tp > 1 for scheme in schemes)
    assert any(scheme.pp > 1 for scheme in schemes)
    assert any(scheme.sp > 1 for scheme in schemes)
    worst = differences(case, run_ranks(staged, case.ranks, case, timeout_s=150))
    assert all(error <= gate for error, gate in zip(worst, GATES[case.dtype], strict=True)), worst


def in_turn(rank: int, world_size: int, cases: Sequence[Case]) -> list[Outcome]:
    return [staged(rank, world_size, case) for case in cases]


def test_bfloat16_errs_as_it_does_with_whole_parameters() -> None:
    """Against fp32: at most twice the difference of the same batches on one rank.

    The largest of two runs each, as a norm's error is sometimes small by chance. Three times for
    losses, whose error of 1e-4 depends on how a CPU sums: tp rounds partial sums once more.
    """
    assert any(
        p.scheme.tp > 1 for case in BFLOAT16 for plan in case.plans() for p in plan.pipelines
    )
    cut, whole = (
        [differences(case, [outcome[at] for outcome in outcomes]) for at, case in enumerate(cases)]
        for cases, outcomes in (
            (BFLOAT16, run_ranks(in_turn, 4, BFLOAT16)),
            (WHOLE, run_ranks(in_turn, 1, WHOLE)),
        )
    )
    for (name, factor), ours, others in zip(
        {"loss": 3, "norm": 2, "parameters": 2}.items(),
        zip(*cut, strict=True),
        zip(*whole, strict=True),
        strict=True,
    ):
        assert max(ours) <= factor * max(others), (name, ours, others)
