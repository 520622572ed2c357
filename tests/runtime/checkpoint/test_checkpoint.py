"""Saving and restoring sharded states, on the same and on another number of ranks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from random_plans import one_pipeline_plan
from ranks import run_ranks, run_ranks_expecting_failure

from seqplan import Scheme, rank_view
from seqplan.plans.views.optimizer_sharding import Sharding
from seqplan.runtime.checkpoint.save_restore import Cursor, restore, save
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.errors import CheckpointError
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.pipeline.staged_llama import StagedLlama
from seqplan.runtime.states.sharded_states import ShardedStates

CONFIG = ModelConfig(hidden=24, layers=2, heads=3, kv_heads=1, ffn=20, vocab=17)


def states_and_optimizer(
    groups: Communicators,
    seed: int,
    config: ModelConfig = CONFIG,
    sharding: Sharding = "flat",
    kind: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> tuple[ShardedStates, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    states = ShardedStates(Llama(config), groups.states, sharding=sharding)
    return states, kind([master for _, master in states.master_parameters()], lr=0.1)


def updates(states: ShardedStates, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    """Update with gradients that depend on the step and the element's place only."""
    for step in range(first, last):
        parts = [part for unit in states.units for part in unit.iterate_owned()]
        for (_, owned), (layout, start, master, _) in zip(
            states.master_parameters(), parts, strict=True
        ):
            places = torch.arange(start, start + master.numel(), dtype=torch.float32)
            gradient = torch.sin(places * (step + 1) + len(layout.name))
            owned.grad = states.view_owned(layout, gradient)
        optimizer.step()


def run(
    rank: int,
    world_size: int,
    folder: Path,
    save_at: int,
    last: int,
    sharding: Sharding = "flat",
    kind: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> dict[str, torch.Tensor]:
    """Restore what there is, go on to ``last``, saving at ``save_at``."""
    groups = Communicators.create()
    states, optimizer = states_and_optimizer(groups, save_at, CONFIG, sharding, kind)
    cursor = restore(folder, states, optimizer, groups.control)
    at = 0 if cursor is None else cursor.next_step
    if at < save_at:
        updates(states, optimizer, at, save_at)
        save(folder, Cursor(save_at, f"sha256:{save_at}"), states, optimizer, groups.control)
        at = save_at
    elif kind is BlockAdamW and optimizer.state:
        assert next(iter(optimizer.state.values()))["first_codes"].dtype == torch.int8
    updates(states, optimizer, at, last)
    return dict(states.export())


def test_a_restored_job_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    straight = run_ranks(run, 3, tmp_path / "a", 2, 5)[0]
    again = run_ranks(run, 3, tmp_path / "a", 2, 5)[0]
    other = run_ranks(run, 2, tmp_path / "a", 2, 5)[0]  # the slices lie differently
    for name, tensor in straight.items():
        assert torch.equal(tensor, again[name]), name
        assert torch.equal(tensor, other[name]), name


def saves(rank: int, world_size: int, folder: Path) -> list[Cursor | None]:
    groups = Communicators.create()
    states, optimizer = states_and_optimizer(groups, 0)
    cursors = [restore(folder, states, optimizer, groups.control)]
    for step in (1, 2, 3, 3):
        updates(states, optimizer, step, step + 1)
        save(folder, Cursor(step, None), states, optimizer, groups.control, keep=2)
    if rank == 0:
        # What a kill leaves: a folder not yet renamed, and one whose cursor is missing.
        shutil.copytree(folder / "step-00000003", folder / "step-00000009.partial")
        (folder / "step-00000008").mkdir()
    torch.distributed.barrier()
    cursors.append(restore(folder, states, optimizer, groups.control))
    return cursors


def test_only_whole_checkpoints_are_found_and_old_ones_go(tmp_path: Path) -> None:
    assert run_ranks(saves, 2, tmp_path / "new") == [[None, Cursor(3, None)]] * 2
    assert sorted(path.name for path in (tmp_path / "new").glob("step-*")) == [
        "step-00000002",
        "step-00000003",
        "step-00000008",
        "step-00000009.partial",
    ]


def save_an_earlier_step(rank: int, world_size: int, folder: Path) -> Cursor | None:
    """Begin anew next to the checkpoints of another run."""
    groups = Communicators.create()
    states, optimizer = states_and_optimizer(groups, 0)
    updates(states, optimizer, 0, 1)
    for step in (3, 6):
        save(folder, Cursor(step, "first"), states, optimizer, groups.control)
    message = "step-00000005: cannot be written: there is step-00000006, which a restart would go"
    with pytest.raises(CheckpointError, match=message):
        save(folder, Cursor(5, "second"), states, optimizer, groups.control)
    return restore(folder, states, optimizer, groups.control)


def test_a_run_behind_the_checkpoints_of_another_removes_none(tmp_path: Path) -> None:
    """Its checkpoints would be the oldest, removed at once, and a restart would take the others."""
    assert run_ranks(save_an_earlier_step, 2, tmp_path) == [Cursor(6, "first")] * 2
    assert {path.name for path in tmp_path.glob("step-*")} == {"step-00000003", "step-00000006"}


def reject(rank: int, world_size: int, folder: Path) -> None:
    """Another model, newer formats, and an optimizer of other parameters do not fit."""
    groups = Communicators.create()
    of = {n: states_and_optimizer(groups, 0, replace(CONFIG, layers=n)) for n in (2, 3)}
    path = save(folder, Cursor(1, None), *of[2], groups.control)
    cursor, reads = (path / "cursor.json").read_text(), "this version reads 1"
    for layers, text, reason in (
        (3, cursor, "checkpoint of another model"),
        (2, "{}", reads),
        (2, '{"format": 5}', reads),
    ):
        if rank == 0:
            (path / "cursor.json").write_text(text)
        torch.distributed.barrier()
        with pytest.raises(ValueError, match=reason):
            restore(folder, *of[layers], groups.control)
    foreign = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))])
    slices = "does not hold this rank's slice of embedding.weight"
    with pytest.raises(ValueError, match=slices):
        save(folder, Cursor(2, None), of[2][0], foreign, groups.control)


def test_checkpoints_and_optimizers_that_do_not_fit_are_rejected(tmp_path: Path) -> None:
    run_ranks(reject, 2, tmp_path)


CONFIG_OF_JOB = ModelConfig(hidden=32, layers=3, heads=4, kv_heads=2, ffn=20, vocab=17)
BEFORE = [Scheme(tp=2, pp=2), Scheme(ulysses=2, ring=2)]
AFTER = {4: [Scheme(pp=2, ring=2), Scheme(tp=4)], 2: [Scheme(tp=2), Scheme(pp=2)]}


def job_of(
    groups: Communicators,
    schemes: list[Scheme],
    rank: int,
    folder: Path,
    sharding: Sharding = "flat",
) -> StagedJob:
    """A job that is restored, run under ``schemes``, saved; its losses and parameters."""
    torch.manual_seed(0)
    job = StagedLlama(Llama(CONFIG_OF_JOB).double(), groups, by_messages=True, sharding=sharding)
    optimizer = torch.optim.AdamW([master for _, master in job.states.master_parameters()], lr=0.1)
    cursor = restore(folder, job.states, optimizer, groups.control)
    first = 0 if cursor is None else cursor.next_step
    prepare = job.make_preparer(SeededTokens(CONFIG_OF_JOB.vocab, 0))
    losses = []
    for step, scheme in enumerate(schemes, start=first):
        view = rank_view(one_pipeline_plan(scheme, [30, 7, 12], step=step, packed=False), rank)
        losses.append(job.run_step(view, prepare(view), optimizer).loss)
    save(folder, Cursor(first + len(schemes), None), job.states, optimizer, groups.control)
    return losses, dict(job.states.export())


StagedJob = tuple[list[float], dict[str, torch.Tensor]]


def staged_job(
    rank: int, world_size: int, folder: Path, schemes: list[Scheme], sharding: Sharding = "flat"
) -> StagedJob:
    return job_of(Communicators.create(), schemes, rank, folder, sharding)


def test_a_checkpoint_goes_on_under_other_strategies_ranks_and_owners(tmp_path: Path) -> None:
    """Also where owners hold transposed parameters whole."""
    run_ranks(staged_job, 4, tmp_path / "4", BEFORE, "by_parameter")
    shutil.copytree(tmp_path / "4", tmp_path / "2")
    four = run_ranks(staged_job, 4, tmp_path / "4", AFTER[4])[0]
    two = run_ranks(staged_job, 2, tmp_path / "2", AFTER[2], "by_parameter")[0]
    assert four[0] == pytest.approx(two[0], rel=1e-12)
    assert four[1].keys() == two[1].keys() == dict(Llama(CONFIG_OF_JOB).named_parameters()).keys()
    for name, parameter in four[1].items():
        assert torch.allclose(parameter, two[1][name], atol=1e-10), name
        assert parameter.shape == dict(Llama(CONFIG_OF_JOB).named_parameters())[name].shape


def read_as_attached(rank: int, world_size: int, folder: Path) -> dict[str, torch.Tensor]:
    """The checkpoint of stages, whose row-parallel weights are transposed, in a whole module."""
    groups = Communicators.create()
    torch.manual_seed(9)
    states = ShardedStates(Llama(CONFIG_OF_JOB).double(), groups.states)
    optimizer = torch.optim.AdamW([master for _, master in states.master_parameters()], lr=0.1)
    assert restore(folder, states, optimizer, groups.control) == Cursor(2, None)
    moments = {kind for state in optimizer.state.values() for kind in state}
    assert moments == {"step", "exp_avg", "exp_avg_sq"}
    save(folder, Cursor(3, None), states, optimizer, groups.control)
    return dict(states.export())


def read_as_staged(rank: int, world_size: int, folder: Path) -> StagedJob:
    return job_of(Communicators.create(), [], rank, folder)


def test_an_order_of_elements_is_turned_into_the_other(tmp_path: Path) -> None:
    """Also that of checkpoints written before parameters were stored transposed."""
    _, exported = run_ranks(staged_job, 4, tmp_path / "job", BEFORE)[0]
    attached = run_ranks(read_as_attached, 3, tmp_path / "job")[0]
    cursor = tmp_path / "job" / "step-00000003" / "cursor.json"
    document = json.loads(cursor.read_text())
    assert document.pop("transposed") == []
    cursor.write_text(json.dumps({**document, "format": 1}))
    _, again = run_ranks(read_as_staged, 2, tmp_path / "job")[0]
    for name, parameter in exported.items():
        assert torch.equal(parameter, attached[name]), name
        assert torch.equal(parameter, again[name]), name


class BlockAdamW(torch.optim.Optimizer):
    """AdamW whose moments are 8-bit codes with a scale for each block.

    ``strange``: with a state that is no plain tensor, which checkpoints cannot hold.
    """

    BLOCK = 64

    def __init__(
        self, parameters: list[torch.nn.Parameter], *, lr: float, strange: bool = False
    ) -> None:
        super().__init__([{"params": parameters}], {"lr": lr})
        self.strange = strange

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["step"] = state.get("step", torch.zeros(())) + 1
            if self.strange:
                state["blocks"] = [self.BLOCK]
            moments = []
            for name, power, decay in (("first", 1, 0.9), ("second", 2, 0.99)):
                moment = self._decoded(state, name, parameter)
                moment.lerp_(parameter.grad**power, 1 - decay)
                self._encode(state, name, moment)
                moments.append(moment / (1 - decay ** state["step"]))
            parameter.add_(moments[0] / (moments[1].clamp(min=0).sqrt() + 1e-3), alpha=-0.01)

    def _decoded(self, state: dict[str, Any], name: str, like: torch.Tensor) -> torch.Tensor:
        if f"{name}_codes" not in state:
            return torch.zeros_like(like)
        codes, scales = state[f"{name}_codes"], state[f"{name}_scales"]
        blocks = codes.reshape(-1).float().split(self.BLOCK)
        parts = [block / 127 * scale for block, scale in zip(blocks, scales, strict=True)]
        return torch.cat(parts).view(like.shape)

    def _encode(self, state: dict[str, Any], name: str, moment: torch.Tensor) -> None:
        blocks = moment.reshape(-1).split(self.BLOCK)
        scales = torch.stack([block.abs().max().clamp(min=1e-12) for block in blocks])
        codes = [(block / scale * 127).round() for block, scale in zip(blocks, scales, strict=True)]
        state[f"{name}_codes"] = torch.cat(codes).to(torch.int8).view(moment.shape)
        state[f"{name}_scales"] = scales


@pytest.mark.parametrize(
    ("sharding", "before", "ranks", "other_ranks"),
    [("flat", "slices", 3, 2), ("by_parameter", "matrices", 2, 3)],
)
def test_states_by_blocks_resume_with_equal_owners(
    tmp_path: Path, sharding: Sharding, before: str, ranks: int, other_ranks: int
) -> None:
    """Slices: with as many ranks, else rejected; whole parameters: with any number of ranks.

    Also from a checkpoint of format 3, whose sharding decides it, too.
    """
    straight = run_ranks(run, 3, tmp_path, 2, 4, sharding, BlockAdamW)[0]
    for text in run_ranks_expecting_failure(run, other_ranks, tmp_path, 2, 4, "flat", BlockAdamW):
        assert "as one, from sharding=" in text
        assert text.endswith("go on with the sharding and the number of ranks that wrote it")
    cursor = tmp_path / "step-00000002" / "cursor.json"
    document = json.loads(cursor.read_text())
    for of_format in (4, 3):
        if of_format == 3:
            assert (document["format"], document.pop("sharding")) == (4, sharding)
            cursor.write_text(json.dumps({**document, "format": 3, "owners": before}))
        again = run_ranks(run, ranks, tmp_path, 2, 4, sharding, BlockAdamW)[0]
        for name, tensor in straight.items():
            assert torch.equal(tensor, again[name]), name


def run_owners(
    rank: int, world_size: int, folder: Path, sharding: Sharding, last: int
) -> dict[str, torch.Tensor]:
    """Restore what there is, go on to ``last`` and save there; states by AdamW."""
    groups = Communicators.create()
    states, optimizer = states_and_optimizer(groups, last, CONFIG, sharding)
    cursor = restore(folder, states, optimizer, groups.control)
    updates(states, optimizer, 0 if cursor is None else cursor.next_step, last)
    save(folder, Cursor(last, None), states, optimizer, groups.control)
    return dict(states.export())


def test_states_by_element_go_on_with_other_owners_and_ranks(tmp_path: Path) -> None:
    """Whole parameters of 7 ranks, some of which have none, then slices, then whole ones again."""
    run_ranks(run_owners, 7, tmp_path / "job", "by_parameter", 1)
    run_ranks(run_owners, 3, tmp_path / "job", "flat", 2)
    last = run_ranks(run_owners, 2, tmp_path / "job", "by_parameter", 3)[0]
    for name, tensor in run_ranks(run_from_one, 1)[0].items():
        assert torch.equal(tensor, last[name]), name


def run_from_one(rank: int, world_size: int) -> dict[str, torch.Tensor]:
    states, optimizer = states_and_optimizer(Communicators.create(), 1)
    updates(states, optimizer, 0, 3)
    return dict(states.export())


def strange_state(rank: int, world_size: int, folder: Path) -> None:
    groups = Communicators.create()
    kind = partial(BlockAdamW, strange=rank == 1)
    states, optimizer = states_and_optimizer(groups, 0, CONFIG, "by_parameter", kind)
    updates(states, optimizer, 0, 1)
    save(folder, Cursor(1, None), states, optimizer, groups.control)


def test_a_state_that_cannot_be_stored_is_rejected_on_every_rank(tmp_path: Path) -> None:
    for text in run_ranks_expecting_failure(strange_state, 2, tmp_path / "job"):
        assert "as a list: checkpoints hold numbers and plain tensors" in text
    assert not (tmp_path / "job").exists()
