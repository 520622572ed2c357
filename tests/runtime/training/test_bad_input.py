"""Plans and data that do not fit, met by ranks that train: the same line on every one of them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from random_plans import make_plan, one_pipeline_plan
from ranks import run_ranks
from small_plans import small_plans

from seqplan import RankView, Scheme, to_json
from seqplan.plans.plan import MicroBatch, PlannedPipeline
from seqplan.runtime import (
    Communicators,
    Peers,
    ShardedStates,
    StagedLlama,
    Step,
    make_preparer,
    run_step,
)
from seqplan.runtime.data import IndexedTargets, IndexedTokens
from seqplan.runtime.errors import PlanError
from seqplan.runtime.models import Llama, ModelConfig
from seqplan.runtime.sources import FileSource, PlanConsumer
from seqplan.runtime.training import StepResult

RANKS = 2
LIMIT_S = 25.0


def samples() -> dict[int, list[int]]:
    """Tokens of every sample that the good plans name."""
    return {
        id: [(7 * id + at) % 64 for at in range(length)]
        for plan in small_plans(4, RANKS)
        for id, length in zip(plan.ids, plan.lengths, strict=True)
    }


def pipeline_parallel_plan() -> str:
    """Two stages, one micro-batch: it passes both, one after the other."""
    batch = MicroBatch((0,), 6, 6, 2.0)
    pipeline = PlannedPipeline(Scheme(pp=2), (0, 1), (batch,), 4.0)
    return to_json(make_plan((pipeline,), [6], RANKS, step=0))


Scenario = dict[str, Any]
"""``plans``: the lines of the file; ``heads`` and ``data`` of the job, which
``staged`` makes one of any strategies. ``data of rank N`` is that rank's alone, and ``labels of
rank N`` with labels."""


def scenarios() -> dict[str, Scenario]:
    good = [to_json(plan) for plan in small_plans(4, RANKS)]
    outside, short, other = samples(), samples(), samples()
    del outside[105]
    short[105] = short[105][:3]
    other[0] = [*other[0][:-1], 63]
    return {
        "outside": {"plans": good, "data": outside},
        "short": {"plans": good, "data": short},
        "other": {"plans": good, "data of rank 1": other},
        "staged other": {"plans": good, "data of rank 1": other, "staged": True},
        "targets": {"plans": good, "labels of rank 1": samples()},
        "heads": {"plans": good, "heads": 1},
        "tp": {"plans": [to_json(one_pipeline_plan(Scheme(tp=2), [6, 4]))]},
        "pp": {"plans": [pipeline_parallel_plan()]},
        "staged tp": {
            "plans": [to_json(one_pipeline_plan(Scheme(tp=2), [6, 4]))],
            "heads": 1,
            "staged": True,
        },
        "staged pp": {"plans": [pipeline_parallel_plan()], "staged": True},
    }


def rejections(rank: int, world_size: int, folder: Path) -> dict[str, tuple[str, list[int]]]:
    """Of each scenario what this rank raises and the steps that it did before."""
    groups = Communicators.create(LIMIT_S)
    return {
        name: _trained(rank, world_size, groups, folder / f"{name}-{rank}.jsonl", scenario)
        for name, scenario in scenarios().items()
    }


def _trained(
    rank: int, world_size: int, groups: Communicators, path: Path, scenario: Scenario
) -> tuple[str, list[int]]:
    heads = scenario.get("heads", 2)
    config = ModelConfig(hidden=16, layers=1, heads=heads, kv_heads=1, ffn=16, vocab=64)
    torch.manual_seed(0)
    model = Llama(config)
    data = IndexedTokens(scenario.get(f"data of rank {rank}", scenario.get("data", samples())))
    if (labeled := scenario.get(f"labels of rank {rank}")) is not None:
        data = IndexedTargets({id: {"text": text} for id, text in labeled.items()}, "text")
    plans = FileSource(path, world_size=world_size)
    prepare: Callable[[RankView], Any]
    run: Callable[[Step[Any]], StepResult]
    if scenario.get("staged"):
        job = StagedLlama(model, groups, tensor_degrees=plans.tensor_degrees())
        optimizer = torch.optim.AdamW([master for _, master in job.states.master_parameters()])
        prepare = job.make_preparer(data)
        run = lambda step: job.run_step(step.view, step.prepared, optimizer)  # noqa: E731
    else:
        states = ShardedStates(model, groups.states)
        optimizer = torch.optim.AdamW([master for _, master in states.master_parameters()])
        peers = Peers(groups.attention)
        prepare = make_preparer(data, peers, heads=config.heads, kv_heads=config.kv_heads)
        run = lambda step: run_step(step.view, step.prepared, model, states, optimizer)  # noqa: E731
    ran = []
    with PlanConsumer(
        plans,
        rank=rank,
        world_size=world_size,
        prepare=prepare,
        control_group=groups.control,
        timeout_s=LIMIT_S,
    ) as steps:
        try:
            for step in steps:
                run(step)
                steps.acknowledge(step.view.step)
                ran.append(step.view.step)
        except PlanError as error:
            return str(error), ran
    return "nothing was rejected", ran


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[int]]]:
    folder = tmp_path_factory.mktemp("plans")
    for name, scenario in scenarios().items():
        for rank in range(RANKS):
            text = "".join(f"{line}\n" for line in scenario["plans"])
            (folder / f"{name}-{rank}.jsonl").write_text(text)
    results = run_ranks(rejections, RANKS, folder, timeout_s=90)  # leaves no process behind
    assert results[0] == results[1]
    return results[0]


@pytest.mark.parametrize(
    ("scenario", "message", "steps"),
    [
        ("outside", "rank 1: sample 105 of step 1: the data has no such id, it has 23 samp", [0]),
        (
            "short",
            r"rank 1: sample 105 of step 1: has 3 tokens, the plan requires \d+; plan with the len",
            [0],
        ),
        (
            "other",
            r"step 0: sample 0 has other tokens on rank 1 than on rank 0\. Give all ranks",
            [],
        ),
        ("targets", "step 0: rank 1 has data with labels, rank 0 without. Give all ranks the", []),
        ("staged other", "step 0: sample 0 has other tokens on rank 1 than on rank 0", []),
        (
            "heads",
            "rank 0: step 0, pipeline 0: Ulysses degree 2 exceeds the model's 1 attention heads: p",
            [],
        ),
        ("tp", "rank 0: step 0, pipeline 0: scheme tp2 cuts the model, and a module that", []),
        ("pp", "rank 0: step 0, pipeline 0: scheme pp2 cuts the model, and a module that", []),
        (
            "staged tp",
            "rank 0: step 0, pipeline 0: tp 2 does not divide the model's 1 attention heads$",
            [],
        ),
        ("staged pp", "rank 0: step 0, pipeline 0: pp 2 exceeds the model's 1 layers$", []),
    ],
)
def test_every_rank_gets_the_same_error(
    failures: dict[str, tuple[str, list[int]]], scenario: str, message: str, steps: list[int]
) -> None:
    text, ran = failures[scenario]
    assert re.match(message, text)
    assert "\n" not in text
    assert ran == steps
