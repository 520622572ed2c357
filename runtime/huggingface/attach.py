"""Taking a model over: from what a program gives to a job with all its parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from seqplan.plans.views.optimizer_sharding import Sharding
from seqplan.runtime.communicators import Communicators, raise_on_all_ranks
from seqplan.runtime.data.tokens import TokenData
from seqplan.runtime.experts.blocks import ExpertBlocks, SplitExperts
from seqplan.runtime.huggingface.experts import AttachedExperts, check_whole
from seqplan.runtime.huggingface.inspection import inspect_on_all_ranks, make_attached_preparer
from seqplan.runtime.huggingface.job import Job, JobParts, StepReport, count_rank_bytes
from seqplan.runtime.huggingface.support import causal_lm
from seqplan.runtime.losses.router_loss import RoutedLoss
from seqplan.runtime.losses.token_losses import LossOf, compute_chunked_loss, label_loss
from seqplan.runtime.sequence_parallel.kernels import find_kernel
from seqplan.runtime.states.gradient_reduction import Reduce
from seqplan.runtime.states.materialize import find_device, materialize_model
from seqplan.runtime.states.optimizers import check_optimizer
from seqplan.runtime.states.sharded_states import ShardedStates

Optimizers = Callable[[list[tuple[str, nn.Parameter]]], torch.optim.Optimizer]

_PREFIX = "model."
"""Prefix of an attached model's parameter names."""


def attach(
    model: nn.Module,
    data: TokenData,
    *,
    optimizer: Optimizers,
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    loss_of: LossOf = label_loss,
    loss_rows: int = 1024,
    autocast: torch.dtype | None = None,
    callbacks: Sequence[Callable[[StepReport], None]] = (),
    groups: Communicators | None = None,
    resident_bytes: float | None = None,
    sharding: Sharding = "flat",
    reduce: Reduce = "step",
    device: torch.device | str | None = None,
    kernel: str | None = None,
    expert_parallel: int = 1,
    expert_row_limit: int | None = None,
) -> Job:
    """Prepare a causal language model and return the job that trains it. Collective.

    ``model``: of transformers, or wrapped by peft, in its dtype and on this rank's device; trained
    values are taken from the first rank, frozen ones must be equal. ``optimizer`` gets names and
    what this rank owns of the trained parameters, as torch's optimizers take them: slices of one
    axis, for an element-wise optimizer, or, if ``sharding`` is ``by_parameter``, whole ones, for
    those that need them; a rank may have none. ``scheduler`` gets the optimizer and steps after
    each step, without a metric. ``loss_of`` gets logits and the micro-batch, or parts of
    ``loss_rows`` tokens of both, and gives a sum over tokens. ``autocast``: dtype in which the
    model computes. ``callbacks`` are called after each step. ``resident_bytes``: what plans assume
    in addition to activations (``Planner.resident_bytes``); a model that takes far more is
    rejected. ``reduce``: after what gradients are summed at their owners (``ShardedStates``).
    ``device``: this rank's, if its model is on the meta device and takes the first rank's values.
    ``kernel``: attention's, by name, which supports all layers, or the first that supports a layer
    if None. ``expert_parallel``: how many consecutive ranks hold all experts together, the degree
    of all plans; of a model of ``load_pretrained`` no rank ever has all experts.
    ``expert_row_limit``: of rows that a rank receives for its experts in a layer; a step with more
    raises ``PlanError`` on the ranks of its block. ``groups``: made
    here if None, after the default process group if there is none either: of torchrun's ranks,
    or of this process alone.

    ``UnsupportedModel``, on every rank, for a model that is not computed exactly,
    whose attention ``kernel`` does not support, or whose experts are not in transformers' registry
    or do not divide; ``ValueError`` if frozen values differ between
    ranks, more is held than that, ``kernel`` is unknown, or the optimizer needs whole parameters
    and ``sharding`` is ``flat``, or ``scheduler`` a metric.
    """
    _check_arguments(data, autocast, callbacks, optimizer, loss_of, scheduler)
    _check_numbers(
        resident_bytes,
        loss_rows=loss_rows,
        expert_parallel=expert_parallel,
        expert_row_limit=1 if expert_row_limit is None else expert_row_limit,
    )
    chosen = None if kernel is None else find_kernel(kernel)
    device = find_device(model, device)
    joined = join_ranks(device)
    made = Communicators.create() if groups is None else None
    groups = made or groups
    assert groups is not None
    blocks = ExpertBlocks.create(expert_parallel, groups, expert_row_limit)
    experts, split = None, None
    if blocks is not None:
        experts = AttachedExperts(model, causal_lm(model), blocks, groups, device)
        names = experts.split.names
        split = SplitExperts(blocks, frozenset(_PREFIX + name for name in names))
        materialize_model(model, groups.states, device, names)
    else:
        check_whole(model, groups)
        materialize_model(model, groups.states, device)
    attached, attends = inspect_on_all_ranks(model, autocast, groups, chosen)
    states = ShardedStates(attached, groups.states, sharding=sharding, reduce=reduce, experts=split)
    masters = [(name.removeprefix(_PREFIX), p) for name, p in states.master_parameters()]
    try:
        if resident_bytes is not None:
            count_rank_bytes(model, states).check_limit(resident_bytes, groups.control)
        stepping = _optimizer_of(masters, optimizer, states, groups)
        scheduling = None if scheduler is None else _scheduler_of(stepping, scheduler, groups)
    except ValueError:  # on all ranks: the model can be attached again, unless experts are split
        states.close()
        if experts is None:
            attached.lm.set_attn_implementation(attached.own_attention)
        raise
    loss = compute_chunked_loss(attached.logits, loss_of, loss_rows)
    routed = None
    if attends.router_loss is not None:
        routed = RoutedLoss(attends.router_loss, attached, loss, groups.control)
    return Job(
        JobParts(
            model=model,
            attached=attached,
            states=states,
            optimizer=stepping,
            named=masters,
            scheduler=scheduling,
            loss_of=loss,
            routed=routed,
            loss_rows=loss_rows,
            callbacks=tuple(callbacks),
            prepare=make_attached_preparer(
                attached, attends, data, groups, states.device, chosen, blocks
            ),
            experts=experts,
            groups=groups,
            close_groups=partial(_close_groups, joined, made, blocks),
        )
    )


def _check_arguments(
    data: object, autocast: object, callbacks: Sequence[object], *functions: object
) -> None:
    """``TypeError`` for what would fail in a step, or not at all; ``functions`` may be None."""
    if not all(callable(getattr(data, name, None)) for name in ("length", "tokens")):
        raise TypeError(
            f"data must be token data, such as runtime.data.IndexedTargets, not {_kind(data)}"
        )
    if autocast is not None and not (
        isinstance(autocast, torch.dtype) and autocast.is_floating_point
    ):
        raise TypeError(f"autocast must be a floating dtype, such as torch.bfloat16: {autocast!r}")
    for name, value in zip(("optimizer", "loss_of", "scheduler"), functions, strict=True):
        if not callable(value) and (value is not None or name == "optimizer"):
            raise TypeError(f"{name} must be a function, not {_kind(value)}")
    for value in callbacks:
        if not callable(value):
            raise TypeError(f"callbacks must be functions, not {_kind(value)}")


def _check_numbers(resident_bytes: object, **counts: object) -> None:
    """Check numbers before anything is made of them. ``TypeError``, ``ValueError``."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"{name}: {value!r:.60}. Give a whole number")
    if resident_bytes is None:
        return
    if isinstance(resident_bytes, bool) or not isinstance(resident_bytes, Real):
        raise TypeError(f"resident_bytes: {resident_bytes!r:.60}. Give bytes as a number")
    if not float(resident_bytes) > 0:
        raise ValueError(f"resident_bytes: {resident_bytes}. Give bytes above 0")


def _kind(value: object) -> str:
    return type(value).__name__


def _close_groups(joined: bool, made: Communicators | None, blocks: ExpertBlocks | None) -> None:
    """Destroy the process groups of a job, or all if it ``joined`` the ranks."""
    if joined:
        dist.destroy_process_group()
        return
    if blocks is not None:
        blocks.close()
    if made is not None:
        made.close()


def join_ranks(device: torch.device) -> bool:
    """Make the default process group of ranks on ``device`` if there is none; whether it did."""
    if dist.is_initialized():
        return False
    backend = "nccl" if device.type == "cuda" else "gloo"
    on: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group(backend, **on)
    else:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, **on)
    return True


def _optimizer_of(
    masters: list[tuple[str, nn.Parameter]],
    optimizer: Optimizers,
    states: ShardedStates,
    groups: Communicators,
) -> torch.optim.Optimizer:
    """Make the optimizer on every rank, or on none: torch rejects a rank without parameters."""
    stepping, error_message = None, None
    try:
        stepping = optimizer(masters)
        _check_steps(stepping, masters)
        check_optimizer(stepping, states)
    except ValueError as error:
        error_message = str(error)
    raise_on_all_ranks(error_message, groups.control, "making the optimizers")
    assert stepping is not None
    return stepping


def _check_steps(stepping: torch.optim.Optimizer, masters: list[tuple[str, nn.Parameter]]) -> None:
    """``ValueError`` for an optimizer that steps none of a rank's parameters."""
    if not hasattr(stepping, "param_groups"):
        raise ValueError(f"optimizer must return a torch.optim.Optimizer, not {_kind(stepping)}")
    stepped = {id(value) for group in stepping.param_groups for value in group["params"]}
    if masters and stepped.isdisjoint(id(master) for _, master in masters):
        raise ValueError(
            "the optimizer has none of the job's parameters. Make it of those that the function "
            "receives, not of the model's"
        )


def _scheduler_of(
    stepping: torch.optim.Optimizer,
    scheduler: Callable[[torch.optim.Optimizer], Any],
    groups: Communicators,
) -> Any:
    """Make the scheduler on every rank, or on none: ranks may differ in groups."""
    scheduling, error_message = None, None
    try:
        scheduling = scheduler(stepping)
        _check_scheduler(scheduling)
    except ValueError as error:
        error_message = str(error)
    raise_on_all_ranks(error_message, groups.control, "making the schedulers")
    return scheduling


def _check_scheduler(scheduling: object) -> None:
    """Raise ``ValueError`` for a scheduler whose steps need a metric."""
    for part in (scheduling, *getattr(scheduling, "_schedulers", ())):
        if isinstance(part, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ValueError(
                f"scheduler: {_kind(part)}, whose step needs a metric. "
                "Make it of job.optimizer, and step it in the loop"
            )
