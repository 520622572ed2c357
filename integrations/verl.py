"""verl's packing and dispatch, planned; imported by verl itself, in every worker:

    export VERL_USE_EXTERNAL_MODULES=seqplan.integrations.verl
    export SEQPLAN_PROFILE=… SEQPLAN_SCHEME=tp1

Importing this module installs it: verl's workload is the measured cost, micro-batches are packed
for all ranks together, and Megatron's dynamic context parallelism takes ``integrations.megatron``.
With ``SEQPLAN_RECOMPUTE=none:4096,full:16384``, tokens on a rank, each micro-batch is trained under
the lightest recomputation mode that holds it. ``SEQPLAN_LOADS`` names work before the language
model, such as a vision encoder's, by fields of samples' ``multi_modal_inputs``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from seqplan.integrations.degree_costs import costs_of_environment
from seqplan.integrations.recomputation_limits import RecomputationLimits, check_switchable
from seqplan.integrations.replacement import (
    describe_plan,
    find_original,
    log_plan,
    replace,
    replace_everywhere,
)
from seqplan.integrations.sample_loads import SampleLoad
from seqplan.integrations.versions import import_with
from seqplan.planner.balance.balanced import Balanced
from seqplan.planner.balance.cost import Cost
from seqplan.planner.balance.fixed_ranks import balance_fixed
from seqplan.planner.balance.loads import balance_loads
from seqplan.planner.balance.phase import Phase
from seqplan.planner.placement.slowdown import Slowdown

__all__ = ["figures", "install"]

logger = logging.getLogger(__name__)

BALANCING = "verl.utils.seqlen_balancing"
TRAINER = "verl.trainer.ppo.ray_trainer"
DYNAMIC = "verl.utils.dynamic_cp_scheduler"
FSDP, MEGATRON = (f"verl.workers.engine.{name}.transformer_impl" for name in ("fsdp", "megatron"))

NAMES = ("rearrange_micro_batches", "calculate_workload", "log_seqlen_unbalance")
"""Functions of ``BALANCING`` that are replaced, here and wherever they were imported already."""

NANOSECONDS = 1_000_000
"""Nanoseconds in a millisecond: workloads are whole numbers, as verl's are."""

figures: dict[str, float] = {}
"""``predicted_ms``, ``gap`` and ``imbalance`` of the last micro-batches that were planned."""


def install(costs: dict[int, Cost] | None = None) -> None:
    """Put planned functions in the place of verl's; ``costs`` by degree, or of the environment.

    ``UnsupportedVersion`` if verl lacks one of them.
    """
    known = costs_of_environment() if costs is None else costs
    limits = RecomputationLimits.from_environment()  # unknown ones, before anything is replaced
    loads = SampleLoad.list_from_environment()
    if limits is not None and loads:
        raise ValueError("recomputation modes with loads: not supported. Leave one out")
    balancing = import_with("verl", BALANCING, *NAMES, known="0.9.1 has them")
    rearrange, _, log = (find_original(getattr(balancing, name)) for name in NAMES)
    cost = known[1]
    planned = (_rearranging(rearrange, cost, loads), _workload(cost, loads), _logging(log, cost))
    for name, function in zip(NAMES, planned, strict=True):
        replace_everywhere("verl", balancing, name, function)
    if find_spec(DYNAMIC):
        # Megatron's degree of expert parallelism chooses among the environment's costs.
        _install_dynamic(import_module(DYNAMIC), costs)


_dispatched_ms: list[float] = []
"""Work before the language model (ms) of each sample of the batch that the driver dispatches."""


def _workload(cost: Cost, loads: Sequence[SampleLoad]) -> Any:
    def calculate_workload(seqlen_list: Any) -> Any:
        """Return what sequences cost, in whole nanoseconds."""
        if loads:
            _install_dispatch(loads)
        lengths = seqlen_list.double()
        work_ms = (cost.a * lengths + cost.b) * lengths
        if len(_dispatched_ms) == len(lengths):
            work_ms += lengths.new_tensor(_dispatched_ms)
        return (work_ms * NANOSECONDS).round().long()

    return calculate_workload


def _install_dispatch(loads: Sequence[SampleLoad]) -> None:
    """Let the trainer's dispatch count loads, once its module is there: verl imports it last."""
    kind: Any = getattr(sys.modules.get(TRAINER), "RayPPOTrainer", None)
    if kind is None or hasattr(kind._balance_batch, "host_function"):
        return
    original = kind._balance_batch

    def _balance_batch(self: Any, batch: Any, *args: Any, **more: Any) -> Any:
        inputs = batch.non_tensor_batch.get("multi_modal_inputs", [])
        if len(inputs):
            phases = [load.make_phase(_list_values(inputs, load.column)) for load in loads]
            _dispatched_ms[:] = np.sum([phase.work_ms for phase in phases], axis=0).tolist()
        try:
            return original(self, batch, *args, **more)
        finally:
            _dispatched_ms.clear()

    replace(kind, "_balance_batch", _balance_batch)


def _rearranging(original: Callable[..., Any], cost: Cost, loads: Sequence[SampleLoad]) -> Any:
    def rearrange_micro_batches(
        batch: Any,
        max_token_len: Any,
        dp_group: Any = None,
        num_batches_divided_by: int | None = None,
        same_micro_num_in_dp: bool = True,
        min_num_micro_batch: int | None = None,
        use_dynamic_bsz_balance: bool = True,
        force_group_size: int = 1,
    ) -> Any:
        """Pack this rank's sequences so that its micro-batches match those of the other ranks."""
        _install_recomputation()
        # An error here ends this rank: to pack as verl does it alone would mix up collectives.
        columns = [_lengths(batch)]
        if loads:
            inputs = batch.get("multi_modal_inputs", [None] * len(columns[0]))
            columns += [_list_values(inputs, load.column) for load in loads]
        together = same_micro_num_in_dp and dp_group is not None
        try:
            if force_group_size > 1:
                raise ValueError(f"groups of {force_group_size} samples stay together")
            rank, of_ranks = _gather(columns, dp_group) if together else (0, [columns])
            balanced = _pack(
                of_ranks,
                int(max_token_len),
                cost,
                loads,
                count_multiple=num_batches_divided_by or 1,
                least_count=min_num_micro_batch or 1,
            )
        except (TypeError, ValueError) as error:
            logger.warning("%s: this batch is packed as verl does it", error)
            return original(
                batch,
                max_token_len,
                dp_group,
                num_batches_divided_by,
                same_micro_num_in_dp,
                min_num_micro_batch,
                use_dynamic_bsz_balance,
                force_group_size,
            )
        figures.update(describe_plan(balanced))
        mine = balanced.micro_batches[rank]
        if rank == 0:
            log_plan(logger, len(mine), balanced)
        first = min(i for micro in mine for i in micro)
        places = [[i - first for i in micro] for micro in mine]
        if use_dynamic_bsz_balance:
            # As verl does, the same on every rank: short ones first and last, for pipelines.
            places = places[::2][::-1] + places[1::2]
        select = import_module("verl.utils.tensordict_utils").index_select_tensor_dict
        return [select(batch, members) for members in places], places

    return rearrange_micro_batches


def _pack(
    of_ranks: Sequence[Sequence[list[Any]]],
    capacity: int,
    cost: Cost,
    loads: Sequence[SampleLoad],
    **counts: int,
) -> Balanced:
    """Pack the samples of all ranks: by rank their lengths, then their values of each load."""
    lengths = [columns[0] for columns in of_ranks]
    if loads and all(lengths):
        phases = [
            load.make_phase([value for columns in of_ranks for value in columns[place]])
            for place, load in enumerate(loads, start=1)
        ]
        phases.append(Phase("text", [n for of_rank in lengths for n in of_rank], cost, capacity))
        return balance_loads(
            phases,
            Slowdown.from_value(None, len(of_ranks)),
            barrier=True,
            execution="lockstep",
            rank_of=np.repeat(np.arange(len(of_ranks)), [len(of_rank) for of_rank in lengths]),
            **counts,
        )
    return balance_fixed(lengths, capacity, cost, **counts)


def _lengths(batch: Any) -> list[int]:
    """Return the tokens of each sample, nested or padded."""
    ids = batch["input_ids"]
    counts = ids.offsets().diff() if ids.is_nested else batch["attention_mask"].sum(dim=1)
    return [int(count) for count in counts.tolist()]


def _list_values(inputs: Iterable[Any], column: str) -> list[Any]:
    """Return each sample's value of a field of its multi-modal inputs, None without it."""
    values: list[Any] = [(getattr(each, "data", each) or {}).get(column) for each in inputs]
    return [value.tolist() if hasattr(value, "tolist") else value for value in values]


def _gather(columns: list[list[Any]], group: Any) -> tuple[int, list[list[list[Any]]]]:
    """Return this rank, and the lengths and values of every rank."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return 0, [columns]
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, columns, group=group)
    return dist.get_rank(group), gathered


def _logging(original: Callable[..., Any], cost: Cost) -> Any:
    def log_seqlen_unbalance(seqlen_list: Any, partitions: Any, prefix: str) -> Any:
        """Add the dispatch's predicted time, gap and imbalance to verl's metrics."""
        metrics = original(seqlen_list, partitions, prefix)
        work = [x * (cost.a * x + cost.b) for x in map(int, seqlen_list)]
        if len(_dispatched_ms) == len(work):
            work = [ms + before for ms, before in zip(work, _dispatched_ms, strict=True)]
        ranks = [sum(work[i] for i in part) for part in partitions]
        mean = sum(ranks) / len(ranks)
        bound = max(mean, *work)
        metrics[f"{prefix}/predicted_ms"] = max(ranks)
        metrics[f"{prefix}/gap"] = max(ranks) / bound - 1
        metrics[f"{prefix}/imbalance"] = max(ranks) / mean - 1
        return metrics

    return log_seqlen_unbalance


def _install_recomputation() -> None:
    """Let the engines that this process has loaded switch modes, if the environment has limits."""
    limits = RecomputationLimits.from_environment()
    if limits is None:
        return
    if (module := sys.modules.get(FSDP)) is not None:
        engines: list[Any] = [kind for kind in vars(module).values() if isinstance(kind, type)]
        for engine in engines:
            step = vars(engine).get("forward_step")
            if step and find_original(step) is step and issubclass(engine, module.FSDPEngine):
                replace(engine, "forward_step", _switching(step, limits))
    if MEGATRON in sys.modules:
        import_module("seqplan.integrations.megatron_recomputation").install_recomputation(limits)


def _switching(original: Callable[..., Any], limits: RecomputationLimits) -> Any:
    """Switch the model's layers before a micro-batch's forward that is trained."""

    def forward_step(self: Any, micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
        if not forward_only:
            tokens = sum(_lengths(micro_batch))
            ranks = getattr(self, "ulysses_sequence_parallel_size", 1)
            _switch_of(self, limits).switch(limits.find_lightest(-(-tokens // ranks)))
        return original(self, micro_batch, loss_function, forward_only)

    return forward_step


def _switch_of(engine: Any, limits: RecomputationLimits) -> Any:
    """Return the engine's switch, made once. ``ValueError`` for modes that it does not have."""
    if (switch := vars(engine).get("_recomputation_switch")) is None:
        kind: Any = import_module("seqplan.runtime.huggingface.recomputation").RecomputationSwitch
        switch = kind(getattr(engine.module, "_fsdp_wrapped_module", engine.module))
        check_switchable(limits.tokens, switch.modes, "verl", offload=switch.offloads)
        engine._recomputation_switch = switch
    return switch


def _install_dynamic(dynamic: Any, costs: dict[int, Cost] | None) -> None:
    """Plan dynamic context parallelism when verl requests Megatron's scheduler."""
    original = find_original(dynamic.get_megatron_dynamic_cp_scheduler_cls)

    def get_megatron_dynamic_cp_scheduler_cls() -> Any:
        from seqplan.integrations import megatron

        megatron.install(costs)
        return original()

    name = get_megatron_dynamic_cp_scheduler_cls.__name__
    replace(dynamic, name, get_megatron_dynamic_cp_scheduler_cls)


if "verl" in sys.modules:
    install()
