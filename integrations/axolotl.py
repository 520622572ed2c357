"""Balanced steps in Axolotl: a plugin, named with its options in the training's YAML.

plugins: [seqplan.integrations.axolotl.SeqplanPlugin]
seqplan_sequences: 64              # of the data set, in an optimizer step
seqplan_capacity: 16384            # tokens of a micro-batch on one rank
seqplan_profile: llama3-8b-h100-80gb
micro_batch_size: 1
gradient_accumulation_steps: 1
sample_packing: false              # the plan packs
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from pydantic import BaseModel

from seqplan.costs.shipped.catalogue import find_profile
from seqplan.integrations.balanced_steps import BalancedSteps
from seqplan.integrations.huggingface_trainer import (
    PlannedTrainerMixin,
    UnplannableError,
    list_planned_lengths,
)
from seqplan.integrations.recomputation_limits import RecomputationLimits
from seqplan.integrations.sample_loads import SampleLoad
from seqplan.integrations.versions import UnsupportedVersion, find_class, find_installed_version
from seqplan.planner.balance.cost import Cost
from seqplan.planner.balance.mode import Mode
from seqplan.planner.balance.phase import Phase

__all__ = ["SeqplanOptions", "SeqplanPlugin"]


_PLUGIN = find_class("axolotl.integrations.base", "BasePlugin") or object
_TRAINER = find_class("axolotl.core.trainers.base", "AxolotlTrainer") or object


class SeqplanOptions(BaseModel):
    """Options of the YAML.

    ``seqplan_sequences``: in an optimizer step; ``seqplan_capacity``: tokens of a micro-batch. What
    one costs: a profile with a scheme, or [a, b, c] in ms per token², per token, per micro-batch.
    ``seqplan_recompute``: tokens of a micro-batch by recomputation mode, {none: 4096, full: 16384},
    each with its costs if the profile has it. ``seqplan_loads``: phases before the language model,
    {vision: {column: image_grid_thw, cost: [a, b, c], capacity: 32768}}, with the data set's column
    of each sample's grids or tokens; ``capacity`` may be left out.
    """

    seqplan_sequences: int | None = None
    seqplan_capacity: int | None = None
    seqplan_profile: str | None = None
    seqplan_scheme: str = "tp1"
    seqplan_cost: list[float] | None = None
    seqplan_recompute: dict[str, int] | None = None
    seqplan_loads: dict[str, dict[str, Any]] | None = None


class SeqplanPlugin(_PLUGIN):  # type: ignore[misc, valid-type]
    """Gives Axolotl a trainer whose ranks take the micro-batches that were planned for them.

    ``UnsupportedVersion`` if Axolotl has no plugins or no such trainer.
    """

    def __init__(self) -> None:
        if object in (_PLUGIN, _TRAINER):
            raise UnsupportedVersion(
                f"axolotl {find_installed_version('axolotl')} has no BasePlugin in "
                "axolotl.integrations.base or no AxolotlTrainer in axolotl.core.trainers.base; "
                "0.19 has both"
            )
        super().__init__()

    def get_input_args(self) -> str:
        """Name the options."""
        return f"{SeqplanOptions.__module__}.{SeqplanOptions.__name__}"

    def get_trainer_cls(self, cfg: Any) -> type[Any] | None:
        """Return Axolotl's trainer class, planned; ``UnplannableError`` for other trainings."""
        others = [name for name in ("rl", "reward_model", "process_reward_model") if cfg.get(name)]
        if others or cfg.get("trainer_cls"):
            which = others[0] if others else "trainer_cls"
            raise UnplannableError(f"{which} uses another trainer: remove it to plan steps")
        if cfg.get("sample_packing"):
            raise UnplannableError("sample_packing: the plan packs; set it to false")
        return make_planned_trainer(cfg)

    def get_training_args(self, cfg: Any) -> dict[str, Any]:
        """Let losses be means over the labeled tokens of all ranks, which Axolotl turns off."""
        return {"average_tokens_across_devices": True}

    def get_collator_cls_and_kwargs(
        self, cfg: Any, is_eval: bool = False
    ) -> tuple[Any, dict[str, Any]] | None:
        """Return a collator that packs without padding, for training."""
        return None if is_eval else (_flattening, {})


@contextmanager
def _reading(option: str) -> Iterator[None]:
    """Name the option in errors of its value, as ``UnplannableError``."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise UnplannableError(f"{option}: {error}") from error


class _Options:
    """Options of the YAML file, validated."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        for name in ("seqplan_sequences", "seqplan_capacity"):
            if not isinstance(cfg.get(name), int) or cfg[name] < 1:
                raise UnplannableError(
                    f"{name}: must be a whole number above 0, not {cfg.get(name)}"
                )
        self.sequences, self.capacity = cfg["seqplan_sequences"], cfg["seqplan_capacity"]
        self.seed = cfg.get("seed") or 0
        profile, cost_given = cfg.get("seqplan_profile"), cfg.get("seqplan_cost")
        if (profile is None) == (cost_given is None):
            raise UnplannableError("give either seqplan_profile or seqplan_cost: [a, b, c]")
        with _reading("what a micro-batch costs"):
            if cost_given is None:
                self.cost = Cost.from_profile(str(profile), cfg.get("seqplan_scheme") or "tp1")
            else:
                a, b, c = map(float, cost_given)
                self.cost = Cost(a, b, c)
        self.modes: list[Mode] | None = None
        with _reading("seqplan_recompute"):
            limits = RecomputationLimits.from_value(cfg.get("seqplan_recompute"))
            if limits is not None:
                self.modes = limits.list_modes(
                    self.capacity, lambda mode: _cost_of(cfg, self.cost, mode)
                )
        with _reading("seqplan_loads"):
            self.loads = SampleLoad.list_from_value(cfg.get("seqplan_loads") or {})
            if self.loads and self.modes:
                raise ValueError("recomputation modes with loads: not supported. Leave one out")

    def balance_steps(self, samples: Any) -> BalancedSteps:
        """Make the steps of a data set; ``UnplannableError`` for columns that it does not have."""
        lengths = list_planned_lengths(samples)
        if self.modes:
            return BalancedSteps(lengths, self.sequences, seed=self.seed, modes=self.modes)
        if not self.loads:
            return BalancedSteps(lengths, self.sequences, self.capacity, self.cost, seed=self.seed)
        if pixels := [name for name in samples.column_names if name.startswith("pixel_values")]:
            raise UnplannableError(
                f"{pixels[0]}: the collator packs tokens alone. Encode images first"
            )
        with _reading("seqplan_loads"):
            for load in self.loads:
                if load.column not in samples.column_names:
                    raise ValueError(f"the data set has no column {load.column}. Add it")
            phases = [load.make_phase(samples[load.column]) for load in self.loads]
            phases.append(Phase("text", lengths.tolist(), self.cost, self.capacity))
            return BalancedSteps(None, self.sequences, loads=phases, seed=self.seed)


def _cost_of(cfg: Mapping[str, Any], cost: Cost, mode: str) -> Cost:
    """Return the profile's cost of a mode; the cost of all modes if it has none."""
    profile = find_profile(str(name)) if (name := cfg.get("seqplan_profile")) else None
    if profile is None or mode not in [known.name for known in profile.modes]:
        return cost
    return Cost.from_profile(profile.keep_modes({mode}), cfg.get("seqplan_scheme") or "tp1")


def make_planned_trainer(cfg: Any) -> type[Any]:
    """Make the trainer's class; ``UnplannableError`` for options that are missing or wrong."""
    options = _Options(cfg)

    class PlannedAxolotlTrainer(PlannedTrainerMixin, _WithLossCounts):
        def __init__(self, *args: Any, train_dataset: Any = None, **kwargs: Any) -> None:
            planned = options.balance_steps(train_dataset)
            _set_steps(kwargs["args"], cfg, planned.steps)
            super().__init__(*args, train_dataset=train_dataset, planned=planned, **kwargs)

    return PlannedAxolotlTrainer


class _WithLossCounts(_TRAINER):  # type: ignore[misc, valid-type]
    """Axolotl's trainer, which passes the step's token count to models that use it.

    Axolotl leaves them out if ``forward`` has no such parameter, although most models
    hand what they get on to their loss. Whether this one does is tried before the first step.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = True


def _set_steps(args: Any, cfg: Any, steps: int) -> None:
    """End after the epochs' planned steps, and warm up for a share of those: Axolotl counted what
    its sampler would take."""
    if cfg.get("max_steps"):
        return
    args.max_steps = round(args.num_train_epochs * steps)
    if cfg.get("warmup_steps") is None:
        ratio = cfg.get("warmup_ratio")
        most = args.max_steps if ratio is not None else 100
        args.warmup_steps = min(int((0.03 if ratio is None else ratio) * args.max_steps), most)


def _flattening(tokenizer: Any = None, **options: Any) -> Any:
    """Make transformers' collator that packs, without what Axolotl gives to collators that pad."""
    return import_module("transformers.data.data_collator").DataCollatorWithFlattening()
