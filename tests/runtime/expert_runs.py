"""Runs of random strategies with split experts on real ranks."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from moded_plans import set_modes
from random_plans import random_plan, random_staged_plan
from staged_runs import Case, sizes_of

from seqplan import Plan, construct_plan
from seqplan.plans.groups import process_groups
from seqplan.plans.lint import lint
from seqplan.plans.recomputation import MODES
from seqplan.plans.schedule import schedule
from seqplan.runtime.models.llama import Llama, ModelConfig

ROUTED = ModelConfig(
    hidden=32,
    layers=2,
    heads=8,
    kv_heads=2,
    ffn=24,
    vocab=61,
    experts=8,
    experts_per_token=2,
    expert_ffn=12,
    router_loss=0.02,
)
DEAD = 5
"""An expert that no token chooses."""


@dataclass(frozen=True)
class RoutedCase(Case):
    """Random pipelines of one stage, tp as well if ``tensor``, some ranks idle or regrouped.

    ``modes``: each micro-batch has a random recomputation mode; ``staged``: aligned stages instead.
    """

    config: ModelConfig = ROUTED
    steps: int = 2
    tensor: bool = False
    modes: bool = False
    staged: bool = False

    def plans(self) -> list[Plan]:
        rng = np.random.default_rng(self.seed)
        if self.staged:
            plans = [staged_plan(rng, step) for step in range(self.steps)]
        elif self.tensor:
            sizes = {**sizes_of(self.config), "layers": 1, "ffn": 24}
            plans = [
                random_staged_plan(rng, self.ranks, sizes, step=step, longest=40)
                for step in range(self.steps)
            ]
        else:
            plans = [
                random_plan(rng, self.ranks, step=step, heads=8, longest=40)
                for step in range(self.steps)
            ]
        if self.modes:
            plans = [set_modes(plan, MODES, rng) for plan in plans]
        return [split_plan(plan, self.expert_parallel) for plan in plans]

    def model(self, seed: int, **options: object) -> Llama:
        """Uneven routing, with an expert that is never chosen."""
        model = super().model(seed, **options)
        with torch.no_grad():
            for layer in model.layers:
                router = layer.router.weight
                router *= 4.0
                # Three pairs of opposite rows: some two logits are above 0, that of DEAD.
                router[4:] = -router[:4]
                router[DEAD] = 0.0
        return model


class LockstepCase(RoutedCase):
    """Micro-steps of 4 ranks whose pipelines differ, with ranks that have no work in one."""

    def plans(self) -> list[Plan]:
        shape = {"u2": [[[0]], [[1]]], "u4": [[[2, 3]]], "u1": [[[4]]], "u3": [[[5]]]}
        ranks = ((0, 1), (2, 3), (0, 1, 2, 3), (0,), (1, 2, 3))
        plans = []
        for step in range(self.steps):
            plan = construct_plan([9, 4, 17, 6 + step, 3, 8], shape, step=step)
            pipelines = tuple(
                replace(pipeline, ranks=of_pipeline, micro_step=micro_step)
                for pipeline, of_pipeline, micro_step in zip(
                    plan.pipelines, ranks, (0, 0, 1, 2, 2), strict=True
                )
            )
            plan = replace(
                plan,
                pipelines=pipelines,
                world_size=4,
                idle_ranks=(),
                groups=process_groups(pipelines),
            )
            plans.append(split_plan(plan, self.expert_parallel))
        return plans


def split_plan(plan: Plan, degree: int) -> Plan:
    """The plan with experts over ``degree`` ranks, which takes its time."""
    predicted = schedule(plan.pipelines, None, degree).makespan_ms
    plan = replace(plan, expert_parallel=degree, predicted_ms=predicted, lower_bound_ms=predicted)
    assert not lint(plan, None), lint(plan, None)
    return plan


SHAPES = (
    {"pp2.u2": [[[0, 1], [2], [3, 4], [5]], [[6], [7, 8]]]},
    {"tp2.pp2": [[[0, 1], [2], [3, 4], [5]]], "u4": [[[6], [7, 8]]]},
    {"pp2.r2": [[[0, 1], [2], [3]]], "u2": [[[4], [5, 6]], [[7, 8]]]},
    {"tp2": [[[0, 1], [2]], [[3]], [[4], [5], [6]], [[7, 8]]]},
)


def staged_plan(rng: np.random.Generator, step: int) -> Plan:
    """Pipelines on 8 ranks, whose stages are whole blocks of 2 ranks."""
    lengths = [int(length) for length in rng.integers(1, 40, 9)]
    shape = SHAPES[step % len(SHAPES)]
    return construct_plan(lengths, shape, ids=range(step, 90 + step, 10), step=step)
