"""Masks, weights, extras, chunks and gathered log-probabilities on ranks, against one process."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from random_plans import one_pipeline_plan, random_plan
from ranks import run_ranks

from seqplan import Plan, Scheme, rank_view, runtime
from seqplan.runtime.data.micro_batch import MicroBatchWork
from seqplan.runtime.sequence_parallel.context import AttentionContext

CONFIG = runtime.models.ModelConfig(hidden=32, layers=2, heads=4, kv_heads=2, ffn=48, vocab=64)
RANKS, STEPS = 4, 4


def plans() -> list[Plan]:
    rng = np.random.default_rng(5)
    many = [random_plan(rng, RANKS, step=step, heads=4, longest=90) for step in range(STEPS)]
    # One token on four ranks: three hold nothing, and still need the extras by name.
    return [*many, one_pipeline_plan(Scheme(ring=4), [1, 2], step=STEPS)]


def samples() -> dict[int, dict[str, Any]]:
    rng = np.random.default_rng(6)
    return {
        id: {
            "tokens": rng.integers(0, CONFIG.vocab, length),
            "mask": rng.integers(0, 2, length),
            "weights": rng.random(length),
            "old": -3 - 2 * rng.random(length),
            "advantage": np.array(rng.normal()),
        }
        for plan in plans()
        for id, length in zip(plan.ids, plan.lengths, strict=True)
    }


def data() -> runtime.data.IndexedTargets:
    return runtime.data.IndexedTargets(
        samples(), "tokens", mask="mask", weights="weights", extras=["old", "advantage"]
    )


def policy_loss(logits: torch.Tensor, micro_batch: MicroBatchWork) -> torch.Tensor:
    ratio = torch.exp(
        runtime.losses.log_probabilities(logits, micro_batch) - micro_batch.extras["old"]
    )
    gain = torch.minimum(ratio, ratio.clamp(0.8, 1.2)) * micro_batch.extras["advantage"]
    return -(gain * micro_batch.weights).sum()


class Headless(torch.nn.Module):
    """A Llama without head, which counts the most rows that a head would see."""

    def __init__(self, llama: runtime.models.Llama) -> None:
        super().__init__()
        self.llama, self.most = llama, 0

    def forward(self, tokens: torch.Tensor, context: AttentionContext) -> torch.Tensor:
        head, self.llama.head = self.llama.head, torch.nn.Identity()  # type: ignore[assignment]
        hidden: torch.Tensor = self.llama(tokens, context)
        self.llama.head = head
        return hidden

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        self.most = max(self.most, len(hidden))
        return self.llama.head(hidden)


def llama() -> runtime.models.Llama:
    torch.manual_seed(0)
    return runtime.models.Llama(CONFIG).double()


Outcome = tuple[list[float], list[float], list[list[tuple[int, Any]]]]


def trained(rank: int, world_size: int) -> Outcome:
    """Losses, norms, and log-probabilities after each step."""
    groups = runtime.Communicators.create()
    model = Headless(llama())
    states = runtime.ShardedStates(model, groups.states)
    optimizer = torch.optim.SGD([master for _, master in states.master_parameters()], lr=0.1)
    prepare = runtime.make_preparer(
        data(), runtime.Peers(groups.attention), heads=4, kv_heads=2, vocab=CONFIG.vocab
    )
    losses, norms, values = [], [], []
    for plan in plans():
        view = rank_view(plan, rank)
        work = prepare(view)
        loss_of = runtime.losses.compute_chunked_loss(model.head, policy_loss, 16)
        result = runtime.run_step(view, work, model, states, optimizer, loss_of=loss_of)
        losses.append(result.loss)
        norms.append(result.gradient_norm)
        assert model.most <= 16
        whole = runtime.training.token_values(
            work,
            model,
            states,
            groups.control,
            values_of=lambda hidden, batch: runtime.losses.log_probabilities(
                model.llama.head(hidden), batch
            ),
        )
        values.append([(id, label) for id, label in whole])
    return losses, norms, values


def one_process() -> Outcome:
    """The same by plain torch, a whole sequence at a time."""
    model, rows = llama(), samples()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, norms, values = [], [], []

    def of(id: int, length: int) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Log-probabilities of tokens 1 …, what counts of them, and the columns."""
        row = {name: torch.as_tensor(column) for name, column in rows[id].items()}
        tokens = row["tokens"][:length]
        logits = model(tokens, runtime.sequence_parallel.local_context([length])).log_softmax(-1)
        new = logits[:-1].gather(1, tokens[1:, None])[:, 0]
        return new, row["mask"][1:length] * row["weights"][1:length], row

    for plan in plans():
        batch = list(zip(plan.ids, plan.lengths, strict=True))
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        divisor = 0.0
        for id, length in batch:
            new, weights, row = of(id, length)
            ratio = torch.exp(new - row["old"][1:length])
            gain = torch.minimum(ratio, ratio.clamp(0.8, 1.2)) * row["advantage"]
            total = total - (gain * weights).sum()
            divisor += weights.sum().item()
        loss = total / (divisor or 1.0)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item())  # type: ignore[misc]
        optimizer.step()
        with torch.no_grad():
            values.append(
                [
                    (
                        id,
                        np.where(
                            np.r_[0, rows[id]["mask"][1:length]], np.r_[0.0, of(id, length)[0]], 0
                        ),
                    )
                    for id, length in batch
                ]
            )
    return losses, norms, values


def test_a_policy_gradient_is_that_of_one_process() -> None:
    losses, norms, values = one_process()
    for mine in run_ranks(trained, RANKS):
        assert mine[0] == pytest.approx(losses, rel=1e-9)
        assert mine[1] == pytest.approx(norms, rel=1e-9)
        for step, expected in zip(mine[2], values, strict=True):
            assert [id for id, _ in step] == [id for id, _ in expected]
            for (_, gathered), (_, whole) in zip(step, expected, strict=True):
                assert gathered == pytest.approx(whole, rel=1e-9)


def rejections(rank: int, world_size: int) -> list[str]:
    """Errors of wrong data on this rank, in one step that puts a sequence on each rank."""
    groups = runtime.Communicators.create()
    messages = []
    plan = random_plan(np.random.default_rng(5), world_size, heads=4, longest=90)
    for loss_tokens, change in (
        (plan.loss_tokens, {"tokens": np.full(200, 64)}),
        (plan.loss_tokens, {"weights": np.full(200, -1.0)}),
        (plan.loss_tokens, {"mask": np.ones(3)}),
        (3, {}),
    ):
        rows = samples()
        spoilt = rows[plan.ids[int(np.argmax(plan.lengths))]]
        spoilt |= {name: values[: len(spoilt["tokens"])] for name, values in change.items()}
        model = llama()
        states = runtime.ShardedStates(model, groups.states)
        optimizer = torch.optim.SGD([master for _, master in states.master_parameters()], lr=0.1)
        prepare = runtime.make_preparer(
            runtime.data.IndexedTargets(rows, "tokens", mask="mask", weights="weights"),
            runtime.Peers(groups.attention),
            heads=4,
            kv_heads=2,
            vocab=CONFIG.vocab,
        )
        try:
            with runtime.sources.PlanConsumer(
                OnePlan(replace(plan, loss_tokens=loss_tokens)),
                rank=rank,
                world_size=world_size,
                prepare=prepare,
                control_group=groups.control,
            ) as consumer:
                for step in consumer:
                    runtime.run_step(step.view, step.prepared, model, states, optimizer)
        except runtime.errors.PlanError as error:
            messages.append(str(error))
    try:
        runtime.StagedLlama(llama(), groups).make_preparer(data())
    except runtime.errors.DataError as error:
        messages.append(str(error))
    return messages


class OnePlan:
    """A source of one step."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def view(self, step: int, rank: int, timeout_s: float) -> Any:
        if step:
            raise runtime.errors.EndOfPlans
        return rank_view(self.plan, rank)

    def acknowledge(self, *_: object) -> None: ...

    def close(self) -> None: ...


def test_wrong_targets_are_rejected_on_every_rank_before_the_step() -> None:
    for tokens, weights, mask, planned, staged in run_ranks(rejections, RANKS):
        assert "of step 0: token 64 is outside the model's vocabulary of 64" in tokens
        assert "of step 0: a weight is -1.0" in weights
        assert "of step 0: column 'mask' has 3 entries for " in mask
        assert planned.startswith("step 0: the plan has 3 loss tokens, the data ")
        assert "the built-in Llama learns the next token only" in staged
