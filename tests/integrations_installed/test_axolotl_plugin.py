"""Balanced steps in Axolotl's trainer, by its plugin: the losses and norms of one process."""

import functools
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("axolotl")
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # Axolotl imports what TRL warns of

from axolotl.core.training_args_base import AxolotlTrainingMixins
from axolotl.integrations.base import PluginManager
from axolotl.integrations.config import merge_input_args
from axolotl.utils.dict import DictDefault
from datasets import Dataset
from test_huggingface_trainer import assert_equal_logs
from trainer_ranks import COST, SAMPLES, SEQUENCES, STEPS, arguments, model, on_ranks
from transformers import LlamaForCausalLM, TrainingArguments

from seqplan.integrations import axolotl as axolotl_host
from seqplan.integrations.huggingface_trainer import UnplannableError
from seqplan.integrations.versions import UnsupportedVersion

PLUGIN = "seqplan.integrations.axolotl.SeqplanPlugin"
OPTIONS = {
    "plugins": [PLUGIN],
    "seqplan_sequences": SEQUENCES,
    "seqplan_capacity": 160,
    "seqplan_cost": [COST.a, COST.b, COST.c],
    "seed": 1,
}


def manager(cfg: DictDefault) -> PluginManager:
    """Axolotl's class, as it is after reading a YAML file."""
    of_host = PluginManager.get_instance()
    of_host.register(PLUGIN)
    of_host.cfg = cfg
    return of_host


@dataclass
class PlannedArguments(AxolotlTrainingMixins, TrainingArguments):
    """As ``AxolotlTrainingArguments``, whose module needs a TRL of another version."""


class MeanOfMeans(LlamaForCausalLM):
    """A model that takes everything and divides by its tokens."""

    def forward(self, *args: Any, num_items_in_batch: Any = None, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


def with_grids(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the grids of images to every third sample, as an image processor does."""
    return [{**s, "image_grid_thw": [[1, 4, 2 * i]] * (i % 3 == 1)} for i, s in enumerate(samples)]


def trained(*, own_means: bool = False, **more: Any) -> tuple[list[dict[str, float]], int, float]:
    """Train as Axolotl's builder does; return the logs, the steps and those of the warm-up."""
    cfg = DictDefault({**OPTIONS, **more})
    plugins = manager(cfg)
    collator, options = plugins.get_collator_cls_and_kwargs(cfg)
    with tempfile.TemporaryDirectory() as folder:
        usual = arguments(folder).to_dict()
        names = ("per_device_train_batch_size", "num_train_epochs", "use_cpu", "logging_steps")
        names += ("learning_rate", "optim", "lr_scheduler_type", "save_strategy", "disable_tqdm")
        names += ("max_grad_norm", "bf16", "ddp_backend", "report_to", "output_dir")
        kwargs: dict[str, Any] = {name: usual[name] for name in names}
        # Arguments of Axolotl's builder, including its number of steps.
        kwargs.update(average_tokens_across_devices=False, max_steps=len(SAMPLES))
        kwargs.update(gradient_checkpointing=False, warmup_steps=1)
        kwargs.update(plugins.get_training_args(cfg))
        trained_model = model()
        if own_means:
            trained_model.__class__ = MeanOfMeans
        trainer = plugins.get_trainer_cls(cfg)(
            model=trained_model,
            args=PlannedArguments(**kwargs),
            train_dataset=Dataset.from_list(
                with_grids(SAMPLES) if "seqplan_loads" in more else SAMPLES
            ),
            data_collator=collator("the tokenizer", padding=True, **options),
        )
        trainer.train()
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        return logs, trainer.state.global_step, trainer.args.warmup_steps


LOADS = {"vision": {"column": "image_grid_thw", "cost": [1e-3, 0.5, 1.0], "capacity": 400}}


@pytest.mark.parametrize(
    "options", [{}, {"seqplan_recompute": {"none": 60, "full": 160}}, {"seqplan_loads": LOADS}]
)
def test_losses_and_norms_are_those_of_one_process(options: dict[str, Any]) -> None:
    for logs, steps, warm_up in on_ranks(2, functools.partial(trained, **options), 300):
        assert_equal_logs(logs)
        assert all(entry["plan/predicted_ms"] > 0 for entry in logs)
        assert (steps, warm_up) == (2 * STEPS, 0)


def test_a_data_set_that_the_collator_would_cut_is_rejected() -> None:
    cfg = DictDefault({**OPTIONS, "seqplan_loads": LOADS})
    kind = manager(cfg).get_trainer_cls(cfg)
    for column, sentence in (("pixel_values", "packs tokens alone"), ("other", "has no column")):
        samples = Dataset.from_list([{**sample, column: [0.5]} for sample in SAMPLES])
        with pytest.raises(UnplannableError, match=sentence):
            kind(train_dataset=samples)


def test_requested_steps_stay() -> None:
    ((_, steps, _),) = on_ranks(1, functools.partial(trained, max_steps=4, warmup_steps=1), 300)
    assert steps == len(SAMPLES)  # as given to the arguments, beyond the epochs


def test_a_model_with_local_means_is_rejected() -> None:
    with pytest.raises(RuntimeError, match="ignores num_items_in_batch: its loss would be a mean"):
        on_ranks(1, functools.partial(trained, own_means=True), 300)


def test_a_version_without_plugins_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axolotl_host, "_TRAINER", object)
    with pytest.raises(UnsupportedVersion, match="no AxolotlTrainer in "):
        axolotl_host.SeqplanPlugin()


def test_options_are_those_of_the_yaml() -> None:
    manager(DictDefault(OPTIONS))
    _, config = merge_input_args()
    assert set(OPTIONS) <= set(config.model_fields)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"seqplan_sequences": None}, "seqplan_sequences: must be a whole number above 0, not "),
        ({"seqplan_capacity": 0}, "seqplan_capacity: must be a whole number above 0, not 0"),
        ({"seqplan_cost": None}, "give either seqplan_profile or seqplan_cost"),
        ({"seqplan_profile": "llama-7b-a800-80gb"}, "give either seqplan_profile or seqplan_cost"),
        ({"seqplan_cost": [1.0, 2.0]}, "what a micro-batch costs: not enough values"),
        ({"seqplan_cost": None, "seqplan_profile": "gpt-9"}, "what a micro-batch costs: .*gpt-9"),
        ({"seqplan_recompute": {"some": 9}}, "seqplan_recompute: unknown recomputation mode: some"),
        ({"seqplan_loads": {"vision": {"column": "image_grid_thw"}}}, "vision: .*Give column and"),
        (
            {"seqplan_loads": LOADS, "seqplan_recompute": {"none": 60, "full": 160}},
            "seqplan_loads: recomputation modes with loads: not supported",
        ),
        ({"sample_packing": True}, "sample_packing: the plan packs"),
        ({"rl": "dpo"}, "rl uses another trainer"),
    ],
)
def test_unsupported_options_are_rejected(options: dict[str, Any], sentence: str) -> None:
    cfg = DictDefault({**OPTIONS, **options})
    with pytest.raises(UnplannableError, match=sentence):
        manager(cfg).get_trainer_cls(cfg)
