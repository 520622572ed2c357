"""Owners of whole parameters on real ranks: optimizers that need them step as in one process."""

import copy
from dataclasses import replace

import pytest
import torch
from ranks import run_ranks, run_ranks_expecting_failure
from staged_runs import (
    CONFIG,
    EPSILON,
    GATES,
    RATE,
    Case,
    Outcome,
    SequenceParallelCase,
    differences,
    sequence_parallel,
    staged,
)
from torch import Tensor, nn

from seqplan.plans.views.optimizer_sharding import Sharding
from seqplan.plans.views.rank_view import rank_view
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.micro_batch import MicroBatchWork
from seqplan.runtime.data.prepared_step import PreparedStep
from seqplan.runtime.device_copy import PackedCopy
from seqplan.runtime.states.optimizers import JoinedOptimizer, check_optimizer
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.training.run_step import run_step

RANKS, STEPS = 4, 3
Named = list[tuple[str, nn.Parameter]]


class ExactMuon(torch.optim.Optimizer):
    """Momentum, orthogonalized by Newton and Schulz in the parameter's dtype."""

    def __init__(self, groups: list[dict[str, list[nn.Parameter]]], lr: float) -> None:
        super().__init__(groups, {"lr": lr})
        assert all(p.dim() == 2 for group in self.param_groups for p in group["params"])

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                momentum.lerp_(parameter.grad, 0.1)
                update = momentum / momentum.norm().clamp(min=1e-12)
                for _ in range(4):
                    update = 1.5 * update - 0.5 * update @ update.T @ update
                parameter.add_(update, alpha=-group["lr"])


def _joined(named: Named, muon: type, **options: float) -> JoinedOptimizer:
    """Muon for the layers' matrices, AdamW for embedding, norms and head; a rank may have none."""
    matrices = [value for name, value in named if name.startswith("layers.") and value.dim() == 2]
    matrix_ids = set(map(id, matrices))
    rest = [value for _, value in named if id(value) not in matrix_ids]
    return JoinedOptimizer(
        [
            muon([{"params": matrices}], lr=RATE, **options),
            torch.optim.AdamW([{"params": rest}], lr=RATE, eps=EPSILON),
        ]
    )


def exact_muon(named: Named) -> torch.optim.Optimizer:
    return _joined(named, ExactMuon)


def torchs_muon(named: Named) -> torch.optim.Optimizer:
    return _joined(named, torch.optim.Muon, weight_decay=0.1)


SMALL = replace(CONFIG, layers=2)
CASES = {
    "sequence parallel": SequenceParallelCase(
        RANKS, 11, steps=STEPS, config=SMALL, sharding="by_parameter", optimizer=exact_muon
    ),
    "any strategies": Case(
        RANKS, 15, steps=STEPS, config=SMALL, sharding="by_parameter", optimizer=exact_muon
    ),
    "any strategies, fp32": Case(
        RANKS, 14, torch.float32, SMALL, STEPS, sharding="by_parameter", optimizer=exact_muon
    ),
    "sequence parallel, torch's": SequenceParallelCase(
        RANKS, 13, torch.float32, SMALL, STEPS, sharding="by_parameter", optimizer=torchs_muon
    ),
}
IN_BFLOAT16 = (1e-5, 1e-4, 1e-3)
"""torch's Muon orthogonalizes in bf16, where the last bit of a gradient may show as 1e-2."""


def every_case(rank: int, world_size: int) -> list[Outcome]:
    return [
        (sequence_parallel if isinstance(case, SequenceParallelCase) else staged)(
            rank, world_size, case
        )
        for case in CASES.values()
    ]


@pytest.fixture(scope="module")
def outcomes() -> list[list[Outcome]]:
    return run_ranks(every_case, RANKS, timeout_s=200)


@pytest.mark.parametrize("name", CASES)
def test_muon_trains_as_in_one_process(outcomes: list[list[Outcome]], name: str) -> None:
    case, at = CASES[name], list(CASES).index(name)
    schemes = {pipeline.scheme for plan in case.plans() for pipeline in plan.pipelines}
    assert any(scheme.sp > 1 for scheme in schemes)
    if not isinstance(case, SequenceParallelCase):
        assert any(scheme.tp > 1 for scheme in schemes)
        assert any(scheme.pp > 1 for scheme in schemes)
    worst = differences(case, [outcome[at] for outcome in outcomes])
    gates = IN_BFLOAT16 if case.optimizer is torchs_muon else GATES[case.dtype]
    assert all(error <= gate for error, gate in zip(worst, gates, strict=True)), worst


class Muon(ExactMuon):
    """By its name known to need whole matrices, here without a check in the optimizer."""

    def __init__(self, groups: list[dict[str, list[nn.Parameter]]], lr: float) -> None:
        torch.optim.Optimizer.__init__(self, groups, {"lr": lr})


def muon_on_slices(rank: int, world_size: int) -> None:
    groups = Communicators.create()
    case = SequenceParallelCase(world_size, 1, config=SMALL)
    states = ShardedStates(case.model(0), groups.states)
    named = states.master_parameters()
    check_optimizer(torch.optim.AdamW([value for _, value in named]), states)
    adamw = torch.optim.AdamW([named[0][1]])
    muon = Muon([{"params": [value for _, value in named[1:]]}], lr=0.1)
    (plan,) = case.plans()[:1]
    work: PreparedStep[MicroBatchWork] = PreparedStep((), PackedCopy("cpu", 0))
    run_step(rank_view(plan, rank), work, nn.Identity(), states, JoinedOptimizer([adamw, muon]))


def test_muon_on_slices_is_rejected_before_the_step() -> None:
    for text in run_ranks_expecting_failure(muon_on_slices, 2):
        assert text.startswith("ValueError: Muon needs whole parameters: sharding must be")


class Prodigy(torch.optim.AdamW):
    """By its name known to need norms over all parameters."""


def estimate_a_rate(rank: int, world_size: int, sharding: Sharding) -> None:
    case = SequenceParallelCase(world_size, 1, config=SMALL)
    states = ShardedStates(case.model(0), Communicators.create().states, sharding=sharding)
    check_optimizer(Prodigy([value for _, value in states.master_parameters()]), states)


@pytest.mark.parametrize("sharding", ["flat", "by_parameter"])
def test_norms_over_all_parameters_are_rejected_on_several_ranks(sharding: Sharding) -> None:
    for text in run_ranks_expecting_failure(estimate_a_rate, 2, sharding):
        assert text.startswith("ValueError: Prodigy needs norms over all parameters, and a rank")
    run_ranks(estimate_a_rate, 1, sharding)


def test_joined_optimizers_are_one_to_schedulers_and_checkpoints() -> None:
    def parameters() -> list[nn.Parameter]:
        torch.manual_seed(0)
        return [nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4))]

    def joined(values: list[nn.Parameter]) -> JoinedOptimizer:
        return JoinedOptimizer(
            [
                ExactMuon([{"params": values[:1]}, {"params": []}], lr=0.1),
                torch.optim.AdamW([("bias", values[1])], lr=0.2),
            ]
        )

    def step(optimizer: torch.optim.Optimizer, values: list[nn.Parameter]) -> None:
        optimizer.zero_grad()
        loss: Tensor = sum((value.sin().sum() for value in values), torch.zeros(()))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    apart, together = parameters(), parameters()
    muon = ExactMuon([{"params": apart[:1]}], lr=0.1)
    adamw, both = torch.optim.AdamW(apart[1:], lr=0.2), joined(together)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(both, 0.5)
    for _ in range(2):
        step(muon, apart[:1])
        step(adamw, apart[1:])
        step(both, together)
        scheduler.step()
        for group in (*muon.param_groups, *adamw.param_groups):
            group["lr"] *= 0.5
    assert [group["lr"] for group in both.param_groups] == [0.025, 0.025, 0.05]
    again = parameters()
    for value, trained in zip(again, together, strict=True):
        value.data.copy_(trained.data)
    resumed = joined(again)
    resumed.load_state_dict(copy.deepcopy(both.state_dict()))
    step(muon, apart[:1])
    step(adamw, apart[1:])
    step(both, together)
    step(resumed, again)
    for one, two, three in zip(apart, together, again, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)
    with pytest.raises(ValueError, match="no optimizer to join"):
        JoinedOptimizer([])
    with pytest.raises(ValueError, match="more than one parameter group"):
        JoinedOptimizer([torch.optim.SGD(apart), torch.optim.SGD(apart)])
