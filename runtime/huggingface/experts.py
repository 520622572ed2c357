"""Expert parallelism of transformers models, by their registry of experts implementations.

Modules of experts keep this rank's part of every parameter. Tokens go to the ranks of their experts
and each rank computes with the implementation that the model had, as one expert a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from seqplan.runtime.communicators import Communicators, raise_on_all_ranks
from seqplan.runtime.device_copy import copy_to_device
from seqplan.runtime.errors import UnsupportedModel
from seqplan.runtime.experts.blocks import ExpertBlocks, SplitExperts, split_experts
from seqplan.runtime.experts.dispatch import dispatch_tokens

IMPLEMENTATION = "seqplan_experts"
"""Name in transformers' registry of experts implementations."""

ATTRIBUTE = "seqplan_experts"
"""Of a module of experts that is split: its ``_Placed``."""


class _Placed:
    """The blocks of a module's experts, their number, and the module's products."""

    def __init__(self, blocks: ExpertBlocks, experts: int, products: Callable[..., Tensor]) -> None:
        self.blocks, self.experts, self.products = blocks, experts, products


class AttachedExperts:
    """A model's experts, split over blocks of ranks; ``split``: parameters by name in the model.

    Collective. Takes the first rank's values, the others' may be on the meta device.
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

        self._lm, self._blocks = lm, blocks
        modules = find_experts(model)
        reason = find_unsupported_experts(lm, modules, blocks.degree)
        raise_on_all_ranks(reason, groups.control, "comparing experts", UnsupportedModel)
        self._modules = modules
        self._implementation: str = next(iter(modules.values())).config._experts_implementation
        self._experts = {name: int(module.num_experts) for name, module in modules.items()}
        self.split: SplitExperts = split_experts(modules, blocks, groups.states, device)
        ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, run_attached_experts)
        for name, module in modules.items():
            forward = type(module).forward.__wrapped__
            products = ALL_EXPERTS_FUNCTIONS.get_interface(self._implementation, forward)
            setattr(module, ATTRIBUTE, _Placed(blocks, self._experts[name], products))
        self._use_part()

    def _use_part(self) -> None:
        for name, module in self._modules.items():
            module.num_experts = self._blocks.count_local(self._experts[name])
        self._lm.set_experts_implementation(IMPLEMENTATION)

    @contextmanager
    def gather(self) -> Iterator[None]:
        """Let every rank have all experts within, and compute with them alone; collective."""
        parts = [
            (module, key, parameter)
            for module in self._modules.values()
            for key, parameter in list(module.named_parameters(recurse=False))
        ]
        for module, key, parameter in parts:
            whole = self._blocks.gather(parameter.detach())
            setattr(module, key, nn.Parameter(whole, requires_grad=False))
        for name, module in self._modules.items():
            module.num_experts = self._experts[name]
        self._lm.set_experts_implementation(self._implementation)
        try:
            yield
        finally:
            for module, key, parameter in parts:
                setattr(module, key, parameter)
            self._use_part()


def find_experts(model: nn.Module) -> dict[str, Any]:
    """Return the modules whose experts transformers' registry runs, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "_is_expert_parallel") and hasattr(type(module).forward, "__wrapped__")
    }


def find_unsupported_experts(
    lm: PreTrainedModel, modules: dict[str, Any], degree: int
) -> str | None:
    """Return why experts cannot be split over ``degree`` ranks; None if they can."""
    name = f"{type(lm).__name__}: expert_parallel {degree}"
    if not modules:
        return f"{name}: has no experts that transformers' registry runs. Use expert_parallel 1"
    if any(module._compiled_call_impl is not None for module in lm.modules()):
        return f"{name}: has compiled layers. Attach it without torch.compile"
    for place, module in modules.items():
        count = int(module.num_experts)
        if place.endswith("base_layer") or hasattr(module, "parametrizations"):
            return f"{name}: {place} has adapters on its experts. Adapt other modules"
        if count % degree:
            return f"{name}: does not divide the {count} experts of {place}. Give a divisor"
        for key, value in module.named_parameters():
            if "." in key or value.shape[:1] != (count,):
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
