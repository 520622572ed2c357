"""Expert parallelism of transformers models, by their registry of experts implementations.

Modules of experts keep this rank's part of every parameter. Tokens go to the ranks of their experts
and each rank computes with the implementation that the model had, as one expert a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from seqplan.runtime.communicators import Communicators, gather_objects, raise_on_all_ranks
from seqplan.runtime.device_copy import copy_to_device
from seqplan.runtime.errors import RankLost, UnsupportedModel
from seqplan.runtime.experts.blocks import ExpertBlocks, SplitExperts, split_experts
from seqplan.runtime.experts.dispatch import dispatch_tokens
from seqplan.runtime.experts.evaluation_turns import EvaluationTurns

IMPLEMENTATION = "seqplan_experts"
"""Name in transformers' registry of experts implementations."""

ATTRIBUTE = "seqplan_experts"
"""Of a module of experts that is split: its ``_Placed``."""


PART = "seqplan_part"
"""Of a module of experts that was loaded in part: the part, and the number of parts."""


class _Placed:
    """The blocks of a module's experts, their number, the module's products and its place.

    ``turns``: of the ranks' calls, while they evaluate.
    """

    turns: EvaluationTurns | None = None

    def __init__(
        self, blocks: ExpertBlocks, experts: int, products: Callable[..., Tensor], layer: int
    ) -> None:
        self.blocks, self.experts, self.products, self.layer = blocks, experts, products, layer


class AttachedExperts:
    """A model's experts, split over blocks of ranks; ``split``: parameters by name in the model.

    Collective. Takes the first rank's values, the others' may be on the meta device; or the parts
    that ``load_pretrained`` has read on every rank.
    ``UnsupportedModel`` on every rank if the model's experts cannot be split.
    """

    def __init__(
        self,
        model: nn.Module,
        lm: PreTrainedModel,
        blocks: ExpertBlocks,
        groups: Communicators,
        device: torch.device,
    ) -> None:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

        self._lm, self._blocks, self._device = lm, blocks, device
        self.modules = find_experts(model)
        reason = find_unsupported_experts(lm, self.modules, blocks.part)
        raise_on_all_ranks(reason, groups.control, "comparing experts", UnsupportedModel)
        in_parts = agree_on_parts(self.modules, groups)
        self.implementation: str = next(iter(self.modules.values())).config._experts_implementation
        self.split: SplitExperts = split_experts(
            self.modules, blocks, groups.states, device, in_parts=in_parts
        )
        ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, run_attached_experts)
        for layer, module in enumerate(self.modules.values()):
            forward = type(module).forward.__wrapped__
            products = ALL_EXPERTS_FUNCTIONS.get_interface(self.implementation, forward)
            experts = int(module.num_experts)
            setattr(module, ATTRIBUTE, _Placed(blocks, experts, products, layer))
            module.num_experts = blocks.count_local(experts)
        lm.set_experts_implementation(IMPLEMENTATION)

    @contextmanager
    def evaluate(self) -> Iterator[None]:
        """Let each rank call the model as often as it likes within, without gradients.

        Collective. A rank that leaves takes part in the calls of the others until all have left.
        """
        modules = list(self.modules.values())
        turns = EvaluationTurns(self._blocks, self._device)

        def call(layer: int, tokens: Tensor) -> None:
            choices = torch.zeros(0, 1, dtype=torch.int64, device=tokens.device)
            run_dispatched(modules[layer], tokens, choices, tokens[:, :1])

        for module in modules:
            getattr(module, ATTRIBUTE).turns = turns
        lost = False
        try:
            yield
        except RankLost:
            lost = True
            raise
        finally:
            for module in modules:
                getattr(module, ATTRIBUTE).turns = None
            if not lost:
                turns.follow(call)

    def gather_on_first(self) -> Iterator[Mapping[str, Tensor]]:
        """Yield each module's whole experts by name, on the CPU of the first rank; collective.

        One module's at a time; nothing but empty mappings on the other ranks.
        """
        for prefix, module in self.modules.items():
            named = {}
            for key, value in module.named_parameters(recurse=False):
                whole = self._blocks.gather_on_first(value.detach())
                if whole is not None:
                    named[f"{prefix}.{key}" if prefix else key] = whole
            yield named


def agree_on_parts(modules: Mapping[str, Any], groups: Communicators) -> bool:
    """Return whether experts were loaded in parts; collective.

    ``UnsupportedModel`` on every rank if only some of the ranks did.
    """
    loaded = any(hasattr(module, PART) for module in modules.values())
    everyone = gather_objects(loaded, groups.control, "comparing experts")
    if len(set(everyone)) > 1:
        raise UnsupportedModel(
            f"rank {everyone.index(True)} has a part of the experts, rank {everyone.index(False)} "
            "all. Load the model with load_pretrained on every rank"
        )
    return loaded


def check_whole(model: nn.Module, groups: Communicators) -> None:
    """Reject a model that was loaded in parts; ``UnsupportedModel`` on every rank."""
    parts = next((vars(module)[PART] for module in model.modules() if PART in vars(module)), None)
    reason = None
    if parts is not None:
        reason = f"the model was loaded in {parts[1]} parts. Attach it with expert_parallel"
    raise_on_all_ranks(reason, groups.control, "comparing experts", UnsupportedModel)


def find_experts(model: nn.Module) -> dict[str, Any]:
    """Return the modules whose experts transformers' registry runs, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "_is_expert_parallel") and hasattr(type(module).forward, "__wrapped__")
    }


def find_unsupported_experts(
    lm: PreTrainedModel, modules: dict[str, Any], part: tuple[int, int]
) -> str | None:
    """Return why experts cannot be split so that ``part`` is here; None if they can.

    ``part``: the part of each module's experts, and the number of parts.
    """
    index, degree = part
    name = f"{type(lm).__name__}: expert_parallel {degree}"
    if not modules:
        return f"{name}: has no experts that transformers' registry runs. Use expert_parallel 1"
    if any(module._compiled_call_impl is not None for module in lm.modules()):
        return f"{name}: has compiled layers. Attach it without torch.compile"
    for place, module in modules.items():
        count = int(module.num_experts)
        adapted = place.endswith("base_layer") or ".modules_to_save." in place
        if adapted or hasattr(module, "parametrizations"):
            return f"{name}: {place} has adapters on its experts. Adapt other modules"
        if count % degree:
            return f"{name}: does not divide the {count} experts of {place}. Give a divisor"
        loaded = getattr(module, PART, None)
        if loaded not in (None, part):
            return (
                f"{name}: {place} has part {loaded[0]} of {loaded[1]} of its experts, not part "
                f"{index} of {degree}. Load the model with the same expert_parallel"
            )
        rows = count // degree if loaded else count
        for key, value in module.named_parameters():
            if "." in key or value.shape[:1] != (rows,):
                return f"{name}: {place}.{key} is not one for each of {count} experts"
    return None


def run_attached_experts(
    module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Compute the experts of a block's tokens, for transformers' registry."""
    placed: _Placed | None = getattr(module, ATTRIBUTE, None)
    if placed is None:  # of another model that shares the configuration
        eager: Any = type(module).forward
        whole: Tensor = eager.__wrapped__(module, hidden_states, top_k_index, top_k_weights)
        return whole
    if placed.turns is not None:
        placed.turns.announce(placed.layer, hidden_states)
    return run_dispatched(module, hidden_states, top_k_index, top_k_weights)


def run_dispatched(
    module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Compute the experts of a block's tokens, those of ``module`` here."""
    placed: _Placed = getattr(module, ATTRIBUTE)

    def compute_products(rows: Tensor, counts: Sequence[int]) -> Tensor:
        count = len(rows)
        local = torch.arange(len(counts), device=rows.device)
        repeats = copy_to_device(torch.tensor(counts), rows.device)
        index = torch.repeat_interleave(local, repeats, output_size=count)[:, None]
        if not count:
            # A row of zeros that depends on the rows: without rows some implementations return a
            # constant, and this rank would leave out the exchanges of backward.
            rows = rows.new_zeros(1, rows.shape[1]) + rows.sum()
            index = index.new_zeros(1, 1)
        weights = torch.ones(len(rows), 1, dtype=rows.dtype, device=rows.device)
        return placed.products(module, rows, index, weights)[:count].to(rows.dtype)

    return dispatch_tokens(
        hidden_states, top_k_index, top_k_weights, placed.experts, compute_products, placed.blocks
    )
