"""Runs of random strategies on real ranks compared with one process without plans."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from unittest.mock import patch

import numpy as np
import torch
from random_plans import one_pipeline_plan, random_plan, random_staged_plan

from seqplan import Plan, Scheme, rank_view
from seqplan.plans.recomputation import MODES
from seqplan.plans.views.optimizer_sharding import Sharding
from seqplan.runtime.check.reference import dense_attention, dense_experts, reference_step
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.experts.blocks import ExpertBlocks
from seqplan.runtime.losses.router_loss import RoutedLoss, RouterLoss
from seqplan.runtime.losses.token_losses import label_loss
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.pipeline.staged_llama import StagedLlama
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states.gradient_reduction import Reduce
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.states.sync import RelayedSync
from seqplan.runtime.training.prepare import make_preparer
from seqplan.runtime.training.run_step import run_step

CONFIG = ModelConfig(hidden=64, layers=4, heads=8, kv_heads=2, ffn=104, vocab=251)
GATES = {torch.float64: (1e-13, 1e-13, 1e-12), torch.float32: (1e-6, 3e-6, 5e-5)}
"""Largest differences of losses and gradient norms, relative, and of parameters, absolute."""

CLIP, RATE, EPSILON = 1.0, 1e-3, 1e-6


Optimizers = Callable[[list[tuple[str, torch.nn.Parameter]]], torch.optim.Optimizer]


def adamw(named: list[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.AdamW([value for _, value in named], lr=RATE, eps=EPSILON)


@dataclass(frozen=True)
class Case:
    """One run: random strategies from ``seed`` on ``ranks`` ranks, ``per_node`` on a node."""

    ranks: int
    seed: int
    dtype: torch.dtype = torch.float64
    config: ModelConfig = CONFIG
    steps: int = 5
    by_messages: bool = True
    whole: bool = False
    sharding: Sharding = "flat"
    optimizer: Optimizers = adamw
    reduce: Reduce = "step"
    expert_parallel: int = 1
    per_node: int | None = None

    def plans(self) -> list[Plan]:
        """``whole``: the same batches on one rank, each sequence in a separate micro-batch."""
        rng = np.random.default_rng(self.seed)
        plans = [
            random_staged_plan(rng, self.ranks, sizes_of(self.config), step=step)
            for step in range(self.steps)
        ]
        if not self.whole:
            return plans
        return [
            one_pipeline_plan(Scheme(), list(plan.lengths), step=plan.step, packed=False)
            for plan in plans
        ]

    def model(self, seed: int, **options: object) -> Llama:
        """Norms that differ from one and large weights: nothing may hide."""
        torch.manual_seed(seed)
        model = Llama(self.config, **options)  # type: ignore[arg-type]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 1 + 0.1 * torch.randn_like(parameter) if parameter.dim() == 1 else 3.0
        return model.to(self.dtype)


def sizes_of(config: ModelConfig) -> dict[str, int]:
    return {name: getattr(config, name) for name in ("layers", "heads", "kv_heads", "ffn", "vocab")}


Outcome = tuple[list[float], list[float], dict[str, torch.Tensor]]


def staged(rank: int, world_size: int, case: Case) -> Outcome:
    groups = Communicators.create()
    # Rank 0's values must win, and are all that is needed.
    with torch.device("meta" if rank % 2 else "cpu"):
        model = case.model(case.seed + rank)
    node = 0 if case.per_node is None else rank // case.per_node
    with patch("socket.gethostname", lambda: f"node-{node}"):
        job = StagedLlama(
            model,
            groups,
            device=torch.device("cpu"),
            tensor_degrees=(2,),
            by_messages=case.by_messages,
            sharding=case.sharding,
            expert_parallel=case.expert_parallel,
        )
    optimizer = case.optimizer(job.states.master_parameters())
    prepare = job.make_preparer(SeededTokens(case.config.vocab, 5))
    losses, norms, relayed = [], [], 0
    for plan in case.plans():
        view = rank_view(plan, rank)
        result = job.run_step(view, prepare(view), optimizer, clip_norm=CLIP)
        relayed += any(isinstance(sync, RelayedSync) for sync in job.states.syncs)
        losses.append(result.loss)
        norms.append(result.gradient_norm)
    assert (relayed > 0) == (case.per_node is not None and case.sharding == "flat")
    return losses, norms, dict(job.states.export())


class SequenceParallelCase(Case):
    """Random pipelines of tp = pp = 1 with regrouping and idle ranks, on ``ShardedStates``."""

    def plans(self) -> list[Plan]:
        rng = np.random.default_rng(self.seed)
        return [
            random_plan(rng, self.ranks, step=step, heads=8, longest=80)
            for step in range(self.steps)
        ]


def sequence_parallel(rank: int, world_size: int, case: Case) -> Outcome:
    groups = Communicators.create()
    model = case.model(case.seed + rank)
    config = case.config
    blocks = ExpertBlocks.create(case.expert_parallel, groups)
    experts = None
    if blocks is not None:
        experts = model.split_experts(blocks, groups.states, torch.device("cpu"))
    states = ShardedStates(
        model, groups.states, sharding=case.sharding, reduce=case.reduce, experts=experts
    )
    optimizer = case.optimizer(states.master_parameters())
    prepare = make_preparer(
        SeededTokens(config.vocab, 5),
        Peers(groups.attention),
        heads=config.heads,
        kv_heads=config.kv_heads,
        modes=MODES,
        blocks=blocks,
    )
    loss, before = label_loss, None
    if config.router_loss:
        router = RouterLoss(config.experts, config.experts_per_token, config.router_loss)
        loss = routed = RoutedLoss(router, model, label_loss, groups.control)
        before = routed.count
    results = []
    for plan in case.plans():
        view = rank_view(plan, rank)
        results.append(
            run_step(
                view,
                prepare(view),
                model,
                states,
                optimizer,
                clip_norm=CLIP,
                loss_of=loss,
                before=before,
            )
        )
    losses = [result.loss for result in results]
    return losses, [result.gradient_norm for result in results], dict(states.export())


@cache
def reference(case: Case) -> Outcome:
    model = case.model(case.seed, attend=dense_attention, run=dense_experts)
    if case.dtype == torch.bfloat16:
        model = model.float()
    return train_alone(model, case.optimizer(list(model.named_parameters())), case.plans(), CLIP)


def train_alone(
    model: Llama, optimizer: torch.optim.Optimizer, plans: list[Plan], clip_norm: float
) -> Outcome:
    """Train in one process without plans' strategies."""
    data = SeededTokens(model.config.vocab, 5)
    results = [reference_step(plan, data, model, optimizer, clip_norm=clip_norm) for plan in plans]
    losses, norms = zip(*results, strict=True)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return list(losses), list(norms), parameters


def differences(case: Case, outcomes: list[Outcome]) -> tuple[float, float, float]:
    """Of losses and norms relative, of parameters absolute, the largest over steps and ranks."""
    losses, norms, parameters = reference(case)
    assert {tuple(outcome[0]) for outcome in outcomes} == {tuple(outcomes[0][0])}
    exported = outcomes[0][2]
    assert exported.keys() == parameters.keys()
    assert not any(outcome[2] for outcome in outcomes[1:])

    def relative(mine: list[float], expected: list[float]) -> float:
        return max(abs(a / b - 1) for a, b in zip(mine, expected, strict=True))

    return (
        relative(outcomes[0][0], losses),
        relative(outcomes[0][1], norms),
        max((exported[name] - parameters[name]).abs().max().item() for name in parameters),
    )
