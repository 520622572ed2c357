"""Ranks that train a tiny model by ``transformers.Trainer``, forked from one process.

Importing it does not import transformers, which takes seconds: tests are collected by processes
that run others.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from free_port import free_port

from seqplan import Cost, Mode
from seqplan.integrations.balanced_steps import BalancedSteps
from seqplan.runtime.saved_tensors import SavedBytes

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, TrainingArguments

needs_trainer = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("accelerate") is None,
    reason="transformers and accelerate are not installed",
)
NO_LABEL = -100
STEPS, SEQUENCES = 3, 12
LENGTHS = np.minimum(
    np.random.default_rng(0).lognormal(3.3, 0.8, STEPS * SEQUENCES).astype(int) + 6, 150
)
COST = Cost(5e-2, 1.0, 0.0)


def sample(place: int) -> dict[str, list[int]]:
    """A document whose prompt, of another share in each, has no labels."""
    generator = torch.Generator().manual_seed(place)
    ids = torch.randint(3, 64, (int(LENGTHS[place]),), generator=generator).tolist()
    prompt = len(ids) * (place % 4) // 5
    return {"input_ids": ids, "labels": [NO_LABEL] * prompt + ids[prompt:]}


SAMPLES = [sample(place) for place in range(len(LENGTHS))]


def planned(capacity: int = 160, recompute: dict[str, int] | None = None) -> BalancedSteps:
    """Steps of one mode, or of those with so many tokens, each a little faster than the next."""
    if recompute is None:
        return BalancedSteps(LENGTHS, SEQUENCES, capacity, COST, seed=1)
    modes = [
        Mode(name, tokens, Cost(5e-2, 1.0 + place / 10, 200.0))
        for place, (name, tokens) in enumerate(recompute.items())
    ]
    return BalancedSteps(LENGTHS, SEQUENCES, modes=modes, seed=1)


FEW = 2 * STEPS
FEW_PLANNED = BalancedSteps(LENGTHS[:FEW], 2, 160, COST, seed=1)
"""Steps of two samples, for three ranks, of which one has none."""


@functools.cache
def planned_trainer() -> Any:
    """What a user writes."""
    from transformers import Trainer

    from seqplan.integrations.huggingface_trainer import PlannedTrainerMixin

    class PlannedTrainer(PlannedTrainerMixin, Trainer):  # type: ignore[misc]
        pass

    return PlannedTrainer


def packing() -> Any:
    """Transformers' collator that packs."""
    from transformers.data.data_collator import DataCollatorWithFlattening

    return DataCollatorWithFlattening()


def model(dtype: torch.dtype = torch.float64) -> LlamaForCausalLM:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    return LlamaForCausalLM(config).to(dtype)


def expert_model() -> Any:
    """A model with experts, of random weights."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=32,
        moe_intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=512,
        experts_implementation="eager",  # which computes in fp64
    )
    return Qwen3MoeForCausalLM(config).double()


def arguments(folder: str, **more: Any) -> TrainingArguments:
    from transformers import TrainingArguments

    usual = {
        "output_dir": folder,
        "per_device_train_batch_size": 1,
        "num_train_epochs": 2,
        "use_cpu": True,
        "logging_steps": 1,
        "report_to": [],
        "learning_rate": 1e-2,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "disable_tqdm": True,
        "max_grad_norm": 0.5,
        "bf16": False,
        "ddp_backend": "gloo" if "RANK" in os.environ else None,
    }
    return TrainingArguments(**{**usual, **more})


FSDP: dict[str, Any] = {
    "fsdp": True,
    "fsdp_config": {
        "fsdp_version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
    },
}
"""Arguments by which a trainer shards the small model."""


def trained(
    *,
    sharded: bool = False,
    resume: str | None = None,
    folder: str | None = None,
    recompute: dict[str, int] | None = None,
    made: Callable[[], Any] = model,
    few: bool = False,
    **more: Any,
) -> list[dict[str, Any]]:
    """Train the model that ``made`` returns; return the logs of each step.

    With modes they have ``saved`` bytes by mode. ``few``: steps of two samples, as many steps.
    """
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    with tempfile.TemporaryDirectory() as scratch:
        if sharded:
            more |= FSDP
        args = arguments(folder or scratch, **more)
        if sharded:
            # On CPUs accelerate takes plain data parallelism, for any setting.
            PartialState()
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        trainer = planned_trainer()(
            model=made(),
            args=args,
            train_dataset=SAMPLES[:FEW] if few else SAMPLES,
            data_collator=packing(),
            planned=FEW_PLANNED if few else planned(recompute=recompute),
        )
        if sharded:
            assert trainer.accelerator.is_fsdp2
        saved = _count_saved(trainer)
        trainer.train(resume_from_checkpoint=resume)
        logged: list[dict[str, Any]] = trainer.state.log_history
        return [{**entry, "saved": saved} for entry in logged if "loss" in entry]


def _count_saved(trainer: Any) -> dict[str, float]:
    """Let a trainer count the bytes that a token keeps for backward, by mode."""
    saved: dict[str, float] = {}
    switch, compute = trainer._recomputation.switch, trainer.compute_loss
    modes: list[str | None] = [None]

    def switched(mode: str | None) -> None:
        modes[0] = mode
        switch(mode)

    def counted(model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        counter = SavedBytes([*trainer.model.parameters()])
        with counter.hooks():
            loss = compute(model, inputs, *arguments, **named)
        saved[str(modes[0])] = counter.total / inputs["input_ids"].numel()
        return loss

    trainer._recomputation.switch, trainer.compute_loss = switched, counted
    return saved


def on_ranks(ranks: int, work: Callable[[], Any], seconds: float = 120.0) -> list[Any]:
    """Run ``work`` on forked ranks; return their results. ``RuntimeError`` if one fails."""
    import transformers

    planned_trainer()  # imported once, here
    port = free_port()
    context = multiprocessing.get_context("fork")
    answers: Any = context.Queue()

    def rank_main(rank: int) -> None:
        # Garbage of earlier tests may hold groups, whose threads only the parent has: destroying
        # one here would wait for them.
        gc.freeze()
        if ranks > 1:
            os.environ.update(
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(ranks),
                LOCAL_WORLD_SIZE=str(ranks),
                GLOO_SOCKET_IFNAME="lo",
            )
        torch.set_num_threads(1)
        transformers.logging.set_verbosity_error()
        sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
        try:
            answers.put((rank, None, work()))
        except BaseException:
            answers.put((rank, traceback.format_exc(), None))
        answers.close()
        answers.join_thread()
        os._exit(0)

    processes = [context.Process(target=rank_main, args=(rank,)) for rank in range(ranks)]
    for process in processes:
        process.start()
    results: dict[int, Any] = {}
    try:
        while len(results) < ranks:
            rank, fault, answer = answers.get(timeout=seconds)
            if fault is not None:
                raise RuntimeError(fault)
            results[rank] = answer
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [results[rank] for rank in range(ranks)]
