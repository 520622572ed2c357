"""A step by itself: its times, its waits for the device, its work."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from seqplan import construct_plan, rank_view
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.losses.token_losses import LossOf, compute_chunked_loss, label_loss
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states.gradient_reduction import Reduce
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.states.sync import CollectiveSync, Finish
from seqplan.runtime.states.unit import Unit
from seqplan.runtime.training import ExponentialMovingAverage
from seqplan.runtime.training.prepare import MicroBatchWork, make_preparer
from seqplan.runtime.training.run_step import StepResult, run_step

LATE_S = 0.15


class LateSync(CollectiveSync):
    """Parameters that arrive late."""

    def all_gather(self, unit: Unit) -> Finish:
        finish = super().all_gather(unit)

        def finish_late() -> None:
            time.sleep(LATE_S)
            finish()

        return finish_late


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


CONFIG = ModelConfig(layers=1)


class Trained:
    """A model, always of the same values, that trains on one view."""

    def __init__(
        self, group: dist.ProcessGroup, reduce: Reduce = "step", recompute: str = "none"
    ) -> None:
        torch.manual_seed(0)
        self.model = Llama(replace(CONFIG, recompute=recompute))
        self.states = ShardedStates(self.model, group, reduce=reduce)
        self.optimizer = torch.optim.AdamW(
            [master for _, master in self.states.master_parameters()]
        )
        self.view = rank_view(construct_plan([16, 8, 5], {"tp1": [[[0, 1], [2]]]}), 0)
        self.prepare = make_preparer(
            SeededTokens(CONFIG.vocab, 0), Peers(None), heads=CONFIG.heads, kv_heads=CONFIG.kv_heads
        )

    def values(self) -> torch.Tensor:
        return torch.cat([master.flatten() for _, master in self.states.master_parameters()])

    def step(self, **options: Any) -> StepResult:
        work = options.pop("work", None) or self.prepare(self.view)
        return run_step(self.view, work, self.model, self.states, self.optimizer, **options)


def test_waits_for_parameters_are_not_computing(group: dist.ProcessGroup) -> None:
    trained = Trained(group)
    trained.step()
    trained.states.syncs = [LateSync(group) for _ in trained.states.units]
    result = trained.step()
    assert len(trained.states.units) > 1
    assert result.step_s > LATE_S * len(trained.states.units)
    assert 0.0 < result.compute_s < LATE_S


def test_a_step_without_waits_updates_equally(group: dist.ProcessGroup) -> None:
    one, other = Trained(group), Trained(group)
    for _ in range(3):
        result, unread = one.step(clip_norm=0.5), other.step(clip_norm=0.5, non_blocking=True)
        assert "values" not in vars(unread.totals)
        assert unread.loss == result.loss
        assert unread.gradient_norm == pytest.approx(result.gradient_norm, rel=1e-12)
        assert result.gradient_norm > 0.5
    for (_, first), (_, second) in zip(
        one.states.master_parameters(), other.states.master_parameters(), strict=True
    ):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-7)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_step_that_failed_runs_again(group: dist.ProcessGroup, recompute: str) -> None:
    """Its micro-batches are not prepared anew, and forwards before it do not count."""
    steady, retried = Trained(group, recompute=recompute), Trained(group, recompute=recompute)
    failed = []

    def fail_once(logits: torch.Tensor, micro_batch: MicroBatchWork) -> torch.Tensor:
        failed.append(micro_batch)
        if len(failed) == 2:
            raise MemoryError("not enough")
        return label_loss(logits, micro_batch)

    work = retried.prepare(retried.view)
    with torch.no_grad():
        retried.model(work[1].tokens, work[1].context)
    with pytest.raises(MemoryError, match="not enough"):
        retried.step(work=work, loss_of=fail_once)
    assert retried.step(work=work, loss_of=fail_once).loss == steady.step().loss
    torch.testing.assert_close(retried.values(), steady.values(), rtol=0, atol=0)


@pytest.mark.parametrize("clip_norm", [0, -1.0, float("nan"), "1"])
def test_norms_that_clip_nothing_or_turn_gradients_are_rejected(
    group: dist.ProcessGroup, clip_norm: Any
) -> None:
    trained = Trained(group)
    with pytest.raises(ValueError, match=r"clip_norm: .*\. Give a number above 0, or None"):
        trained.step(clip_norm=clip_norm)


@pytest.mark.parametrize(
    ("loss_of", "error", "message"),
    [
        (
            lambda logits, _: logits.sum(-1),
            ValueError,
            r"loss_of: returned shape \(24,\)\. ",
        ),
        (lambda *_: 0.5, TypeError, r"loss_of: returned float\. Return a scalar tensor"),
    ],
)
def test_losses_that_are_no_scalars_are_rejected(
    group: dist.ProcessGroup, loss_of: LossOf, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Trained(group).step(loss_of=loss_of)
    of_parts = compute_chunked_loss(lambda hidden: hidden, lambda hidden, _: hidden.sum(-1), 8)
    with pytest.raises(ValueError, match=r"loss_of: returned shape \(8,\)\. Return a sum"):
        Trained(group).step(loss_of=of_parts)


def test_a_step_that_waits_for_counts_is_not_run_without_waits(group: dist.ProcessGroup) -> None:
    with pytest.raises(ValueError, match="reduce='micro-batch' waits for the ranks' counts"):
        Trained(group, "micro-batch").step(non_blocking=True)


def test_a_trace_shows_the_parts_of_a_step(group: dist.ProcessGroup) -> None:
    trained = Trained(group)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
        trained.step()
    names = {event.key for event in trace.key_averages()}
    assert {name for name in names if name.startswith("seqplan::")} == {
        "seqplan::all_gather",
        "seqplan::attention",
        "seqplan::attention_backward",
        "seqplan::optimizer",
        "seqplan::reduce_scatter",
        "seqplan::start_reduce_scatter",
        "seqplan::wait_for_parameters",
    }


def test_the_average_of_parameters_is_kept_and_applied(group: dist.ProcessGroup) -> None:
    trained = Trained(group)
    average = ExponentialMovingAverage(trained.states, 0.75)
    expected = {name: value.clone() for name, value in trained.states.export()}
    for _ in range(3):
        trained.step()
        average.update()
        for name, value in trained.states.export():
            expected[name] = 0.75 * expected[name] + 0.25 * value
    after = dict(trained.states.export())
    with average.apply():
        trained.states.materialize()
        for name, value in trained.model.named_parameters():
            torch.testing.assert_close(value.detach(), expected[name])
            assert not torch.equal(value, after[name])
    assert all(torch.equal(value, after[name]) for name, value in trained.states.export())
    with pytest.raises(ValueError, match=r"decay must be at least 0 and below 1: 1\.0"):
        ExponentialMovingAverage(trained.states, 1.0)


def test_work_of_another_type_is_rejected(group: dist.ProcessGroup) -> None:
    trained = Trained(group)
    with pytest.raises(TypeError, match=r"work must be the preparer's result, .*, not list"):
        trained.step(work=list(trained.prepare(trained.view)))
