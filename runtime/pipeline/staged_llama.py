"""A Llama that trains under plans of any strategies: its states, groups and steps in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from seqplan.plans.views.optimizer_sharding import Sharding
from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.checkpoint.weights import load_weights
from seqplan.runtime.communicators import Communicators, gather_objects, raise_on_all_ranks
from seqplan.runtime.data.prepared_step import PreparedStep
from seqplan.runtime.data.tokens import TokenData
from seqplan.runtime.experts.blocks import ExpertBlocks
from seqplan.runtime.models.llama import Llama, check_experts
from seqplan.runtime.pipeline.llama_units import interleave_units, list_expert_units, list_units
from seqplan.runtime.pipeline.prepare import PreparedWork, StagedModel, make_stage_preparer
from seqplan.runtime.pipeline.run_step import run_staged_step
from seqplan.runtime.sequence_parallel.kernels import choose_kernel_for_heads, find_kernel
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states.rails import make_rail
from seqplan.runtime.states.staged_states import StagedStates
from seqplan.runtime.tensor_parallel.groups import TensorGroups
from seqplan.runtime.training.run_step import StepResult


class StagedLlama:
    """``model``'s parameters as sharded states, and steps of any ⟨tp, pp, ulysses, ring⟩ on them.

    The values of the first rank's model are taken, and the model is not used again: the others may
    be on the meta device, if ``device`` is given, and the first anywhere.
    All ranks make it together. ``ValueError``, on all of them, for frozen parameters and for
    several dtypes.

    ``tensor_degrees``: the tp degrees that strategies will have, as far as this rank knows them
    (``FileSource.tensor_degrees``). Of those that any rank knows, the groups of all aligned blocks
    are made now; others, with a warning, when a step first needs them. ``by_messages``: no such
    groups, tensor parallelism by point-to-point messages instead.

    ``sharding``: ``by_parameter`` for optimizers that need whole parameters. ``weights``: folder of
    ``checkpoint.save_weights``, or of torch, whose values are taken instead of the model's, which
    may then be on the meta device on all ranks: no rank has more than its share of it.

    ``kernel``: of attention, by name, the first that supports the model's heads if None;
    ``ValueError`` if it is unknown or does not support them.

    ``expert_parallel``: how many consecutive ranks hold all experts together, the degree of all
    plans; no rank then ever has more than one part of a layer's experts. ``ValueError`` if it does
    not divide the experts and the ranks. ``expert_row_limit``: of rows that a rank receives for
    its experts in a layer; a step with more raises ``PlanError`` on the ranks of its block.

    ``states`` has the optimizer's parameters, the export and what checkpoints are of.
    """

    def __init__(
        self,
        model: Llama,
        groups: Communicators,
        *,
        device: torch.device | None = None,
        tensor_degrees: Iterable[int] = (),
        by_messages: bool = False,
        sharding: Sharding = "flat",
        weights: str | os.PathLike[str] | None = None,
        kernel: str | None = None,
        expert_parallel: int = 1,
        expert_row_limit: int | None = None,
    ) -> None:
        self.config = model.config
        values = dict(model.named_parameters())
        raise_on_all_ranks(_find_unsupported(values), groups.control, "comparing parameters")
        blocks = ExpertBlocks.create(expert_parallel, groups, expert_row_limit)
        check_experts(model.config, blocks)
        held = model.config.experts // expert_parallel
        experts = list_expert_units(model.config, held, model.config.expert_ffn)
        chosen = None if kernel is None else find_kernel(kernel)
        if chosen is not None:
            where = device or model.head.weight.device
            dtype = model.head.weight.dtype
            choose_kernel_for_heads(model.config.head_dim, dtype, where, chosen)
        self.states = StagedStates(
            interleave_units(list_units(model.config, model.config.experts), experts),
            model.config.layers,
            values,
            groups.states,
            device,
            sharding=sharding,
            without_values=weights is not None,
            experts=[name for name, _ in experts],
            blocks=blocks,
            rail=make_rail(groups),
        )
        if weights is not None:
            load_weights(weights, self.states, groups.control)
        tensor_groups = TensorGroups(
            groups.tensor,
            join_degrees(tensor_degrees, groups.control),
            by_messages=by_messages,
            timeout_s=groups.timeout_s,
        )
        peers = Peers(groups.attention)
        self._model = StagedModel(
            self.config, self.states, peers, tensor_groups, groups.control, blocks, chosen
        )

    def make_preparer(self, data: TokenData) -> Callable[[RankView], PreparedStep[PreparedWork]]:
        """Return what a consumer does ahead of a step, see ``make_stage_preparer``."""
        return make_stage_preparer(data, self._model)

    def run_step(
        self,
        view: RankView,
        work: PreparedStep[PreparedWork],
        optimizer: torch.optim.Optimizer,
        *,
        clip_norm: float | None = None,
        count_saved: bool = False,
        non_blocking: bool = False,
    ) -> StepResult:
        """Run this rank's part of a step and update the parameters it owns; all ranks call it.

        ``count_saved``: whether the bytes are counted that micro-batches keep for backward;
        ``non_blocking``: whether loss and norm stay on the device until they are read.
        """
        return run_staged_step(
            view,
            work,
            self._model,
            optimizer,
            clip_norm=clip_norm,
            count_saved=count_saved,
            non_blocking=non_blocking,
        )


def join_degrees(degrees: Iterable[int], group: dist.ProcessGroup) -> set[int]:
    """Join the degrees of all ranks of ``group``, so that all make the same groups."""
    doing = "agreeing on the degrees of tensor parallelism"
    return set().union(*gather_objects(set(degrees), group, doing))


def _find_unsupported(values: Mapping[str, Tensor]) -> str | None:
    """Return the error message for a frozen parameter or several dtypes."""
    first, like = next(iter(values.items()))
    for name, value in values.items():
        if not value.requires_grad:
            return (
                f"{name}: requires_grad=False, and StagedLlama trains all parameters. "
                "Set requires_grad=True, or train with ShardedStates"
            )
        if value.dtype != like.dtype:
            return (
                f"{name}: {value.dtype}, and {first} has {like.dtype}. "
                "Convert the model to one dtype, or train with ShardedStates"
            )
    return None
