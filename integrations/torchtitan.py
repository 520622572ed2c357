"""Balanced steps in torchtitan: a data loader and a trainer, named in the training's configuration.

from seqplan import Cost
from seqplan.integrations.torchtitan import PlannedDataLoader, PlannedTrainer

config = PlannedTrainer.Config(
    dataloader=PlannedDataLoader.Config(
        load_samples=load, sequences=64, cost=Cost.from_profile("llama3-8b-h100-80gb", "tp1")
    ),
    training=TrainingConfig(local_batch_size=1, seq_len=16_384, disable_cuda_graphs=True),
    …,
)

torchtitan packs the samples that each rank reads into rows of ``seq_len`` tokens, a fixed number in
a step. Here the rows of all ranks are planned together, as many as a step needs, each as long as
its samples. Its loss divides by the labels of all ranks and rows, as a plan requires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from seqplan.integrations.balanced_steps import BalancedSteps, RankedStep
from seqplan.integrations.versions import UnsupportedVersion, find_class, find_installed_version
from seqplan.planner.balance.cost import Cost

__all__ = ["PlannedDataLoader", "PlannedTrainer"]

IGNORED = -100
"""A label that the loss leaves out."""

Sample = tuple[Sequence[int], Sequence[int]]
"""Tokens and their labels, which are shifted already, as in torchtitan's data sets."""


def _base(module: str, name: str) -> Any:
    """Return a class of torchtitan; a stand-in if torchtitan is not installed."""

    class Absent:
        @dataclass(kw_only=True, slots=True)
        class Config:
            pass

        def __init__(self, *_: Any, **__: Any) -> None:
            raise UnsupportedVersion(
                f"torchtitan {find_installed_version('torchtitan')} has no {name} in {module}; "
                "0.3.0 has it"
            )

    return find_class(module, name) or Absent


_LOADER = _base("torchtitan.components.dataloader", "BaseDataLoader")
_TRAINER = _base("torchtitan.trainer", "Trainer")


@dataclass(kw_only=True, slots=True)
class PlannedData(_LOADER.Config):  # type: ignore[misc, name-defined]
    """Configuration of a ``PlannedDataLoader``.

    ``load_samples``: gives all samples for a tokenizer, the same on every rank; ``sequences``:
    of them in a step; ``cost``: of a row on one rank; ``pad_to``: tokens to whose multiple a
    row is padded, as a loss in chunks requires.
    """

    load_samples: Callable[[Any], Sequence[Sample]]
    sequences: int
    cost: Cost
    seed: int = 0
    pad_to: int = 8


class PlannedDataLoader(_LOADER):  # type: ignore[misc, valid-type]
    """Yields a rank's rows of planned steps, epoch after epoch.

    A row of packed samples is as long as they are; positions begin anew with each. ``ValueError``
    for settings under which torchtitan would not run it.
    """

    Config = PlannedData

    def __init__(
        self,
        config: PlannedData,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: Any,
        seq_len: int,
        local_batch_size: int,
        **_: Any,
    ) -> None:
        if _LOADER.__name__ == "Absent":
            super().__init__()
        if local_batch_size != 1:
            raise ValueError(
                f"training.local_batch_size: {local_batch_size}. Set it to 1: a row holds many "
                "samples"
            )
        if config.pad_to < 1 or seq_len % config.pad_to:
            raise ValueError(
                f"pad_to: {config.pad_to}. Give a divisor of training.seq_len, {seq_len}"
            )
        self._samples, self._pad_to = config.load_samples(tokenizer), config.pad_to
        lengths = [len(tokens) for tokens, _ in self._samples]
        self._planned = BalancedSteps(
            lengths, config.sequences, seq_len, config.cost, seed=config.seed
        )
        self._ranks, self._rank = dp_world_size, dp_rank
        self._step = 0
        self._steps: Iterator[RankedStep] | None = None
        self._rows: list[list[int]] = []
        self.figures: dict[str, float] = {}
        """``predicted_ms``, ``gap``, ``imbalance`` and ``tokens`` of the step."""

    def plan_step(self) -> int:
        """Plan the next step and return its rows on each rank."""
        if self._steps is None:
            self._steps = self._list_steps()
        step = next(self._steps)
        self._step += 1
        self._rows, self.figures = step.micro_batches[self._rank], step.figures
        return max(map(len, step.micro_batches))

    def _list_steps(self) -> Iterator[RankedStep]:
        """Yield the steps from the present one on."""
        while True:
            epoch, first = divmod(self._step, self._planned.steps)
            yield from self._planned.epoch(epoch, self._ranks, lockstep=True, first=first)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Yield the rows of the steps that ``plan_step`` plans: input, positions and labels."""
        while True:
            yield self._make_row(self._rows.pop(0) if self._rows else [])

    def _make_row(self, places: Sequence[int]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        samples = [self._samples[place] for place in places]
        for place, (tokens, _) in zip(places, samples, strict=True):
            self._planned.check_length(place, len(tokens))
        added = -sum(len(tokens) for tokens, _ in samples) % self._pad_to
        if added or not samples:  # a rank without work runs a row of padding with the others
            added = added or self._pad_to
            samples.append(([0] * added, [IGNORED] * added))
        inputs = torch.tensor([[token for tokens, _ in samples for token in tokens]])
        targets = torch.tensor([[label for _, labels in samples for label in labels]])
        positions = torch.cat([torch.arange(len(tokens)) for tokens, _ in samples])[None]
        return {"input": inputs, "positions": positions}, targets

    def state_dict(self) -> dict[str, Any]:
        """Return the steps that were planned, which are the same on every rank."""
        return {"step": self._step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after the steps of a state; with any number of ranks."""
        if state_dict:
            self._step, self._steps = int(state_dict["step"]), None


@dataclass(kw_only=True, slots=True)
class PlannedTraining(_TRAINER.Config):  # type: ignore[misc, name-defined]
    """Configuration of torchtitan's trainer, which it is for a ``PlannedTrainer``."""


class PlannedTrainer(_TRAINER):  # type: ignore[misc, valid-type]
    """Takes as many rows in a step as it is planned with.

    ``ValueError`` before the model is built for what cannot run rows of any length.
    """

    Config = PlannedTraining

    def __init__(self, config: Any) -> None:
        if _TRAINER.__name__ != "Absent":
            check_settings(config)
        super().__init__(config)

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        """Plan a step and take it."""
        self.gradient_accumulation_steps = self.dataloader.plan_step()
        super().train_step(data_iterator)


def check_settings(config: Any) -> None:
    """Check that rows of any length can run; ``ValueError`` names the setting."""
    parallelism = config.parallelism
    for name in ("tensor", "context", "pipeline"):
        degree = getattr(parallelism, f"{name}_parallel_degree")
        if degree != 1:
            raise ValueError(
                f"parallelism.{name}_parallel_degree: {degree}. Set it to 1: rows of any length "
                "cannot be divided"
            )
    if not config.training.disable_cuda_graphs:
        raise ValueError(
            "training.disable_cuda_graphs: False. Set it to True: rows differ in length"
        )
    if not isinstance(config.dataloader, PlannedData):
        kind = type(config.dataloader).__qualname__
        raise ValueError(f"dataloader: {kind}. Give a PlannedDataLoader.Config")
    chunks = getattr(config.loss, "num_chunks", 1)
    if config.dataloader.pad_to % chunks:
        raise ValueError(
            f"pad_to: {config.dataloader.pad_to}. Give a multiple of loss.num_chunks, {chunks}"
        )
    attention = getattr(config.model_spec.model.first_attention, "inner_attention", None)
    if not any(kind in type(attention).__qualname__ for kind in ("Flex", "Varlen")):
        raise ValueError(
            f"attention: {type(attention).__qualname__} has no mask of packed samples. Choose the "
            "model's attn_backend 'flex' or 'varlen'"
        )
