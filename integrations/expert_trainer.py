"""Experts over ranks in ``transformers.Trainer`` and what subclasses it, with balanced steps.

    class PlannedExpertTrainer(PlannedExpertTrainerMixin, Trainer):
        pass

Each rank keeps its part of every layer's experts, of which torch's data parallelism takes no
notice: their gradients are summed over the ranks that hold them, after the step's micro-batches.
Ranks run in lockstep, as tokens of each micro-batch go to the ranks of their experts.
"""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seqplan.integrations.balanced_steps import BalancedSteps
from seqplan.integrations.expert_checkpoint import load_parts, remove_parts, save_part
from seqplan.integrations.huggingface_trainer import PlannedTrainerMixin
from seqplan.integrations.trainer_settings import name_optimizer
from seqplan.planner.argument_checks import read_whole_number
from seqplan.runtime.checkpoint.checkpoint_files import attempt_together
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.errors import communicating
from seqplan.runtime.experts.blocks import ExpertBlocks
from seqplan.runtime.huggingface.expert_saving import save_split_model
from seqplan.runtime.huggingface.experts import AttachedExperts, find_experts
from seqplan.runtime.huggingface.support import causal_lm

_BY_ELEMENT = re.compile("(paged_?)?(adamw?|sgd|lion|rmsprop|adagrad|ademamix)(_.*|[0-9]+bit)?")
"""Optimizers, and their classes, whose update of an element depends on no other element."""

_DATA_PARALLEL = ("NO", "MULTI_CPU", "MULTI_GPU")


class PlannedExpertTrainerMixin(PlannedTrainerMixin):
    """``PlannedTrainerMixin`` with experts over ``expert_parallel`` consecutive ranks.

    For plain data parallelism. The model may be of ``huggingface.load_pretrained`` with the same
    degree, or whole on every rank, of which the first rank's values are taken.
    ``UnplannableError`` before the first step for settings that would not be exact,
    ``UnsupportedModel`` for a model whose experts are not in transformers' registry.
    """

    optimizer: Any  # set by the trainer
    _experts: AttachedExperts | None = None

    def __init__(
        self, *args: Any, planned: BalancedSteps, expert_parallel: int, **kwargs: Any
    ) -> None:
        self._degree = read_whole_number("expert_parallel", expert_parallel)
        super().__init__(*args, planned=planned, **kwargs)
        if self._degree == 1:
            return
        self._groups = Communicators.create()
        blocks = ExpertBlocks.create(self._degree, self._groups)
        assert blocks is not None
        self._blocks = blocks
        lm = causal_lm(self.model)
        self._experts = AttachedExperts(self.model, lm, blocks, self._groups, self.args.device)
        ignore: Any = nn.parallel.DistributedDataParallel
        ignore._set_params_and_buffers_to_ignore_for_model(self.model, self._experts.split.names)

    @property
    def _lockstep(self) -> bool:
        return self._degree > 1 or super()._lockstep

    def _reasons(self) -> list[str]:
        """List what cannot be planned here, or is not exact with experts over ranks."""
        reasons, args, degree = super()._reasons(), self.args, self._degree
        if degree == 1:
            return reasons
        optimizer = name_optimizer(self)
        given: Any = self
        checks = {
            f"expert_parallel: {degree} does not divide the {args.world_size} ranks": (
                degree < 1 or args.world_size % degree != 0
            ),
            f"{self.accelerator.distributed_type.value} with expert_parallel. Use plain data "
            "parallelism": self.accelerator.distributed_type not in _DATA_PARALLEL,
            "a model that is sharded at load with expert_parallel. Load it whole": (
                getattr(self, "is_distributed_loading_by_transformers", False)
            ),
            "fp16 with expert_parallel. Use bf16": args.fp16,
            "torch_compile with expert_parallel. Turn it off": args.torch_compile,
            "recomputation modes with expert_parallel. Use activation_checkpointing": bool(
                self._planned.modes
            ),
            f"optim={optimizer} with expert_parallel: its update is not of single elements": (
                _BY_ELEMENT.fullmatch(optimizer.lower()) is None
            ),
            "an optimizer of whole experts with expert_parallel. Give optim instead": (
                given.optimizer is not None
            ),
            "save_on_each_node with expert_parallel. Save into a folder that all ranks share": (
                args.save_on_each_node
            ),
        }
        return reasons + [reason for reason, applies in checks.items() if applies]

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Run a step's micro-batches, then sum the gradients of experts over their ranks."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self._experts is None:
            return loss
        for parameter in self._name_experts().values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            with communicating("summing the gradients of experts"):
                dist.all_reduce(parameter.grad, group=self._blocks.replicas)
            # Data parallelism takes the mean over all ranks, for which the trainer scales losses.
            parameter.grad /= self.args.world_size
        return loss

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the whole model, a layer's experts at a time; all ranks call it."""
        trainer: Any = super()
        if self._experts is None or causal_lm(self.model) is not self.model:
            trainer.save_model(output_dir, _internal_call)
            return
        folder = output_dir or self.args.output_dir
        save_split_model(folder, self.model, self._experts, self._groups.control, {})
        if self.args.process_index:
            return
        tokenizer: Any = getattr(self, "processing_class", None)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        torch.save(self.args, os.path.join(folder, "training_args.bin"))

    def _load_with_experts(self, folder: str) -> bool:
        load = partial(super()._load_with_experts, folder)
        if self._experts is None:
            return load()
        problem, group = f"{folder}: cannot be loaded", self._groups.control
        return attempt_together(load, problem, group, "resuming")

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save as the trainer, and the other parts of the optimizer's state of experts."""
        trainer: Any = super()
        trainer._save_optimizer_and_scheduler(output_dir)
        folder, rank = Path(output_dir), self.args.process_index
        if self._experts is None:
            if self.args.should_save:
                remove_parts(folder)
            return
        problem, group = f"{folder}: cannot be written", self._groups.control
        attempt_together(lambda: None if rank else remove_parts(folder), problem, group, "saving")

        def save() -> None:
            if 0 < rank < self._degree:
                save_part(folder, self.optimizer, self._name_experts(), self._blocks.part)

        attempt_together(save, problem, group, "saving")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load as the trainer, and this rank's part of the optimizer's state of experts."""
        trainer: Any = super()
        trainer._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        load = partial(load_parts, Path(checkpoint), self.optimizer, self._name_experts())
        if self._experts is None:
            load((0, 1))
            return
        part, problem = self._blocks.part, f"{checkpoint}: cannot be resumed"
        attempt_together(lambda: load(part), problem, self._groups.control, "resuming")

    def _clip_grad_norm(self, model: Any) -> Any:
        """Clip the gradient of the whole model to ``max_grad_norm``; return its norm before."""
        trainer: Any = super()
        if self._experts is None:
            return trainer._clip_grad_norm(model)
        norm = self._measure_grad_norm()
        factor = torch.clamp(self.args.max_grad_norm / (norm + 1e-6), max=1.0)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor.to(parameter.grad.dtype))
        return norm

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        trainer: Any = super()
        if grad_norm is None and self._experts is not None:
            grad_norm = self._measure_grad_norm()
        return trainer._get_grad_norm(model, grad_norm=grad_norm)

    def _measure_grad_norm(self) -> Tensor:
        """Return the norm of the whole model's gradient; collective over the block."""
        parts = {id(parameter) for parameter in self._name_experts().values()}
        sums = torch.zeros(2, dtype=torch.float64, device=self.args.device)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                sums[int(id(parameter) in parts)] += parameter.grad.double().square().sum()
        experts = self._blocks.gather(sums[1:]).sum()
        return (sums[0] + experts).sqrt()

    def _name_experts(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters of experts by name, in parts if ranks have parts."""
        return {
            f"{prefix}.{key}": parameter
            for prefix, module in find_experts(self.model).items()
            for key, parameter in module.named_parameters()
            if parameter.requires_grad
        }
