"""Balanced steps in ``transformers.Trainer`` and what subclasses it, as a mixin over four methods.

    class PlannedTrainer(Planned, Trainer):
        pass

One item of the loader is a rank's whole step; the borders of micro-batches travel inside it, so
that worker processes need no plan. The loader is not given to accelerate, which would shard it
again. The trainer sets the epoch, also if a callback ended the one before early.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from seqplan.integrations.balanced_steps import BalancedSteps, RankedStep, list_lengths
from seqplan.integrations.recomputation_limits import check_switchable
from seqplan.integrations.trainer_settings import find_cut_checkpoint, is_sharded, list_reasons
from seqplan.integrations.trainer_trial import (
    IGNORED,
    LABELS,
    cut_sample,
    find_inexact,
    find_wrong_packing,
)
from seqplan.runtime.huggingface.expert_loading import load_pretrained
from seqplan.runtime.huggingface.experts import find_experts
from seqplan.runtime.huggingface.recomputation import RecomputationSwitch
from seqplan.runtime.huggingface.support import causal_lm
from seqplan.runtime.stopwatch import Stopwatch


class UnplannableError(ValueError):
    """A setting under which planned steps would fail, hang or be silently wrong."""


def list_planned_lengths(samples: Any) -> npt.NDArray[np.int64]:
    """List the tokens of each sample; ``UnplannableError`` for an iterable or no data set."""
    if samples is None or not hasattr(samples, "__len__"):
        raise UnplannableError("an iterable or no data set has no places to plan")
    return list_lengths(samples)


class PlannedTrainerMixin:
    """Trains on the steps of ``planned``, each rank on its micro-batches.

    A mixin before a trainer class in the bases. The data set has a length and an element
    ``input_ids`` in each sample; the collator packs without padding
    (``DataCollatorWithFlattening``, ``padding_free=True``). ``UnplannableError`` before the first
    step for what cannot be planned, with every reason. ``plan/…`` figures are among the logs.

    Where ``planned`` has recomputation modes, each micro-batch runs under its mode by the layers'
    checkpointing, whatever ``gradient_checkpointing`` is.
    """

    sync_each_micro_batch = True
    """FSDP2: False keeps whole gradients between micro-batches, for one reduction a step."""

    _degree = 1
    """Ranks that hold a layer's experts together."""

    # Set by the trainer.
    args: Any
    accelerator: Any
    model: Any
    state: Any
    train_dataset: Any
    data_collator: Any
    model_accepts_loss_kwargs: bool
    compute_loss_func: Any

    def __init__(self, *args: Any, planned: BalancedSteps, **kwargs: Any) -> None:
        self._planned = planned
        self._figures: Mapping[str, float] = {}
        self._isolated = False
        self._watch: Stopwatch | None = None
        super().__init__(*args, **kwargs)
        self._recomputation = RecomputationSwitch(self.model)
        if reasons := [*self._reasons(), *self._recomputation_reasons()]:
            raise UnplannableError("; ".join(reasons))
        plugin: Any = getattr(self.accelerator.state, "fsdp_plugin", None)
        if self.accelerator.is_fsdp2 and plugin.mixed_precision_policy is not None:
            # accelerate would round the loss itself to bfloat16.
            policy = replace(plugin.mixed_precision_policy, output_dtype=torch.float32)
            plugin.mixed_precision_policy = policy

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train; ``UnplannableError`` for a checkpoint that lacks a part of the state."""
        if resume_from_checkpoint:
            cut = find_cut_checkpoint(self, resume_from_checkpoint)
            if cut is not None:
                raise UnplannableError(cut)
        trainer: Any = super()
        return trainer.train(resume_from_checkpoint, *args, **kwargs)

    @property
    def _lockstep(self) -> bool:
        """Whether every micro-batch waits for all ranks: in all but plain data parallelism."""
        gathers_metrics = any(base.__name__ == "SFTTrainer" for base in type(self).__mro__)
        return is_sharded(self) or gathers_metrics

    def _reasons(self) -> list[str]:
        """List what cannot be planned here."""
        return list_reasons(self, len(self._planned))

    def _recomputation_reasons(self) -> list[str]:
        """List why planned recomputation modes cannot be switched here."""
        if not self._planned.modes:
            return []
        plugin: Any = getattr(self.accelerator.state, "fsdp_plugin", None)
        deepspeed: Any = getattr(self.accelerator.state, "deepspeed_plugin", None)
        checks = {
            "torch_compile: compiled layers do not switch modes. Turn it off": (
                getattr(self.args, "torch_compile", False)
            ),
            "activation_checkpointing wraps the layers: true. Turn it off": (
                getattr(plugin, "activation_checkpointing", False)
            ),
            # A layer computed again gathers its parameters again, on this rank alone.
            "ZeRO stage with recomputation modes: 3. Use stage 2": (
                getattr(deepspeed, "zero_stage", 0) == 3
            ),
        }
        reasons = [reason for reason, applies in checks.items() if applies]
        try:
            check_switchable(
                self._planned.modes,
                self._recomputation.modes,
                type(self.model).__name__,
                offload=self._recomputation.offloads,
            )
        except ValueError as error:
            reasons.append(str(error))
        return reasons

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader whose items are this rank's steps."""
        args, planned = self.args, self._planned
        workers = {}
        if args.dataloader_num_workers:
            workers = {
                "prefetch_factor": args.dataloader_prefetch_factor,
                "persistent_workers": args.dataloader_persistent_workers,
                "multiprocessing_context": args.dataloader_multiprocessing_context,
            }
        return _StepLoader(
            _SamplesOfStep(self.train_dataset, planned),
            batch_sampler=_StepsOfRank(self),
            collate_fn=_PackedStep(self.data_collator),
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            **workers,
        )

    def _check_resumed(self) -> None:
        """Compare the settings with those of the checkpoint, and store them with the next one.

        ``UnplannableError`` if its steps have other sequences, or are of another trainer: some
        sequences would be repeated or skipped.
        """
        settings, records = self._planned.settings, self.state.stateful_callbacks
        if self.state.global_step > 0 and "BalancedSteps" not in records:
            raise UnplannableError(
                f"the checkpoint of step {self.state.global_step} has no record of BalancedSteps. "
                "Resume from one of planned steps, or train without resume_from_checkpoint"
            )
        before = records.setdefault("BalancedSteps", settings)
        if changed := [name for name, value in settings.items() if before.get(name) != value]:
            differences = [f"{name} {before.get(name)}, not {settings[name]}" for name in changed]
            raise UnplannableError(
                f"the checkpoint is of BalancedSteps with {'; '.join(differences)}. Give it the "
                "same, or train without resume_from_checkpoint"
            )

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        trainer: Any = super()
        if not self._load_with_experts(resume_from_checkpoint):
            trainer._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        trainer: Any = super()
        if not self._load_with_experts(self.state.best_model_checkpoint):
            trainer._load_best_model()

    def _load_with_experts(self, folder: str) -> bool:
        """Load a saved model that has experts; False without any, and if ranks have shards.

        The trainer leaves out tensors that are stored in another form, as most experts are.
        ``ValueError`` if a part of the model is missing.
        """
        whole = not is_sharded(self) and causal_lm(self.model) is self.model
        if not whole or not find_experts(self.model):
            return False
        if not Path(folder, "config.json").is_file():
            raise ValueError(f"{folder} has no config.json. Resume from another checkpoint")
        # Values stay as they are stored if the type is the widest of the model's.
        dtypes = {parameter.dtype for parameter in self.model.parameters()}
        stored, info = load_pretrained(
            folder,
            expert_parallel=self._degree,
            dtype=reduce(torch.promote_types, dtypes),
            output_loading_info=True,
        )
        if missing := sorted(info["missing_keys"]):
            raise ValueError(f"{folder} lacks {missing[0]}. Resume from another checkpoint")
        self.model.load_state_dict(stored.state_dict())
        return True

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: Any
    ) -> tuple[list[Any], Any]:
        """Take the next step, and the labeled tokens of all ranks in it."""
        step = next(epoch_iterator, None)
        if step is None:
            return [], None
        self._figures = step.pop("figures")
        count: Any = self
        tokens = count._get_num_items_in_batch(step["micro_batches"], device)
        # A whole number: FSDP2 casts floats to bfloat16, which scales the gradients wrongly.
        return [step], tokens.round().long().clamp(min=1)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Run a step's micro-batches, gradients reduced once, or each time under FSDP2."""
        if not self._isolated:
            if reason := find_inexact(self, model):
                raise UnplannableError(reason)
            self._isolated = True
        watch = self._watch = Stopwatch(self.args.device)
        total: Any = 0.0
        micro_batches = inputs["micro_batches"]
        every_time = self.sync_each_micro_batch and self.accelerator.is_fsdp2
        trainer: Any = super()
        modes = inputs["modes"] or [None] * len(micro_batches)
        for k, micro_batch in enumerate(micro_batches):
            last = k == len(micro_batches) - 1
            self._recomputation.switch(modes[k])
            self.accelerator.gradient_state._set_sync_gradients(last)  # DeepSpeed steps where set
            with nullcontext() if last or every_time else self.accelerator.no_sync(model):
                total = total + trainer.training_step(model, micro_batch, num_items_in_batch)
        self._recomputation.switch(None)
        watch.stop()
        return total

    def floating_point_ops(self, inputs: Any) -> int:
        """Count the step's operations: those of its micro-batches."""
        trainer: Any = super()
        return sum(trainer.floating_point_ops(micro_batch) for micro_batch in _parts(inputs))

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Count the step's tokens, without fillers: ranks gather their counts once a step."""
        trainer: Any = super()
        trainer._track_num_input_tokens(_join(inputs) if "micro_batches" in inputs else inputs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log predictions and this rank's time of the last step with the loss."""
        if "loss" in logs:
            figures = dict(self._figures)
            if self._watch is not None:
                seconds = self._watch.seconds()
                figures["measured_ms"] = 1e3 * seconds
                figures["tokens_per_s"] = figures["tokens"] / seconds
            logs.update({f"plan/{name}": value for name, value in figures.items()})
        trainer: Any = super()
        trainer.log(logs, *args, **kwargs)


class _StepLoader(DataLoader[Any]):
    """A loader of steps by ``_StepsOfRank`` that takes its epoch from the trainer."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch whose steps come next."""
        sampler: Any = self.batch_sampler
        sampler.set_epoch(epoch)


class _StepsOfRank:
    """A batch sampler: each batch is one rank's step, with fillers if ranks run in lockstep."""

    def __init__(self, trainer: PlannedTrainerMixin) -> None:
        self._trainer, self._planned = trainer, trainer._planned
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; the trainer reaches it through the loader that skips steps, too."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._planned.steps

    def __iter__(self) -> Iterator[list[Any]]:
        trainer, lockstep = self._trainer, self._trainer._lockstep
        trainer._check_resumed()
        steps = self._planned.epoch(self._epoch, trainer.args.world_size, lockstep=lockstep)
        for step, planning_ms in _time_steps(steps):
            of_rank = step.micro_batches[trainer.args.process_index]
            local = [micro for micro in of_rank if micro]
            some = next(i for micros in step.micro_batches for micro in micros for i in micro)
            wanted = len(of_rank) if lockstep else max(1, len(local))
            fillers = wanted - len(local)
            parts = [*local, *([some] for _ in range(fillers))]
            modes = None
            if step.modes is not None:
                pairs = zip(of_rank, step.modes[trainer.args.process_index], strict=True)
                modes = [mode for micro, mode in pairs if micro]
                modes += [self._planned.modes[0]] * fillers
            figures = {**step.figures, "planning_ms": planning_ms}
            yield [(parts, [False] * len(local) + [True] * fillers, modes, figures)]


def _time_steps(steps: Iterator[RankedStep]) -> Iterator[tuple[RankedStep, float]]:
    """Yield steps, each with the time that its planning took (ms)."""
    while True:
        begun = time.perf_counter()
        step = next(steps, None)
        if step is None:
            return
        yield step, 1e3 * (time.perf_counter() - begun)


class _SamplesOfStep(Dataset[Any]):
    """Samples by what the sampler yields: the nested places of a step.

    Each has its planned length, or the step differs from the balanced one: ``UnplannableError``.
    """

    def __init__(self, samples: Any, planned: BalancedSteps) -> None:
        self._samples, self._planned = samples, planned

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, step: Any) -> Any:
        parts, are_fillers, modes, figures = step
        samples = [
            [cut_sample(self._sample(i), 1) if filler else self._sample(i) for i in part]
            for part, filler in zip(parts, are_fillers, strict=True)
        ]
        return samples, are_fillers, modes, figures

    def _sample(self, place: int) -> Any:
        sample = self._samples[place]
        try:
            self._planned.check_length(place, len(sample["input_ids"]))
        except ValueError as error:
            raise UnplannableError(str(error)) from None
        return sample


class _PackedStep:
    """Packs each micro-batch by the trainer's collator; fillers have no label."""

    def __init__(self, collator: Any) -> None:
        self._collator = collator

    def __call__(self, steps: Sequence[Any]) -> dict[str, Any]:
        ((parts, are_fillers, modes, figures),) = steps
        packed = [self._collator(part) for part in parts]
        for part, micro_batch, filler in zip(parts, packed, are_fillers, strict=True):
            lengths = [len(sample["input_ids"]) for sample in part]
            if reason := find_wrong_packing(micro_batch, lengths):
                raise UnplannableError(reason)
            if filler:
                for key in LABELS:
                    if key in micro_batch:
                        micro_batch[key].fill_(IGNORED)
        fillers = sum(are_fillers)
        return {"micro_batches": packed, "fillers": fillers, "modes": modes, "figures": figures}


def _parts(inputs: Any) -> list[Any]:
    """List a step's micro-batches; inputs that are none, as in evaluation, are one."""
    return list(inputs["micro_batches"]) if "micro_batches" in inputs else [inputs]


def _join(step: Any) -> dict[str, torch.Tensor]:
    """Join each field of a step's micro-batches that has an entry for each token.

    The fillers, which are the last micro-batches, leave none.
    """
    micro_batches, fillers = step["micro_batches"], step["fillers"]
    tokens = [micro_batch["input_ids"].shape for micro_batch in micro_batches]
    joined = {}
    for key in micro_batches[0]:
        values = [micro_batch.get(key) for micro_batch in micro_batches]
        if [getattr(value, "shape", None) for value in values] == tokens:
            real = values[: len(values) - fillers]
            joined[key] = torch.cat(real, dim=1) if real else values[0][:, :0]
    return joined
