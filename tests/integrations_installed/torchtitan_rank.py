"""A rank of torchtitan's trainer on planned rows: ``torchtitan_rank.py FILE``, ranks by torchrun's
variables. Writes each step's loss and gradient norm, and the first step's loss of plain code.

torchtitan trains on GPUs alone: its device, the kernel of its attention and two calls that GPUs
alone have are replaced by those of a CPU.
"""

import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torchtitan.tools.utils as devices
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import distribute_tensor
from torch.nn.attention.flex_attention import create_mask
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

devices.device_type, devices.device_module = "cpu", torch.cpu

import torchtitan.components.metrics as metrics  # noqa: E402
import torchtitan.distributed.utils as distributed  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.models.common.attention import FlexAttention  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402

from seqplan import Cost  # noqa: E402
from seqplan.integrations.torchtitan import PlannedDataLoader, PlannedTrainer  # noqa: E402

SEQUENCES, STEPS, SEQ_LEN = 8, 2, 128
"""Samples of a step, steps, and tokens of a row."""


def attend(
    q: Any, k: Any, v: Any, *, block_mask: Any, scale: Any, enable_gqa: bool, **_: Any
) -> Any:
    """Attend as flex attention does, which has no gradients on a CPU."""
    allowed = create_mask(block_mask.mask_mod, len(q), 1, q.shape[2], k.shape[2], device="cpu")
    out = scaled_dot_product_attention(
        q, k, v, attn_mask=allowed, scale=scale, enable_gqa=enable_gqa
    )
    return out, SimpleNamespace(lse=None)


FlexAttention._compiled_flex_attn = staticmethod(attend)
distributed.set_pg_timeouts = lambda *_, **__: None
metrics.build_device_memory_monitor = lambda: SimpleNamespace(
    device_name="CPU",
    reset_peak_stats=lambda: None,
    get_peak_stats=lambda: metrics.DeviceMemStats(0, 0, 0, 0, 0, 0),
)


class NoTokenizer(BaseTokenizer):  # type: ignore[misc]
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__()

    def encode(self, *_: Any, **__: Any) -> list[int]:
        raise NotImplementedError

    decode = get_vocab_size = encode


def load_samples(_: Any) -> list[tuple[list[int], list[int]]]:
    draw = torch.Generator().manual_seed(0)
    samples = []
    for length in torch.randint(2, 60, (3 * SEQUENCES,), generator=draw).tolist():
        tokens = torch.randint(0, 2048, (length + 1,), generator=draw).tolist()
        labels = [-100] * (length // 3) + tokens[length // 3 + 1 :]
        samples.append((tokens[:-1], labels))
    return samples


def make_config() -> Any:
    base = llama3_debugmodel()
    config = PlannedTrainer.Config(
        **{field.name: getattr(base, field.name) for field in fields(base)}
    )
    config.dataloader = PlannedDataLoader.Config(
        load_samples=load_samples, sequences=SEQUENCES, cost=Cost(1e-4, 1e-3, 0.1)
    )
    config.tokenizer = NoTokenizer.Config()
    config.training.local_batch_size, config.training.seq_len = 1, SEQ_LEN
    config.training.steps, config.training.disable_cuda_graphs = STEPS, True
    config.training.mixed_precision_param = "float32"
    config.parallelism.spmd_backend = "partial_dtensor"
    config.debug.seed = 1
    config.validator.enable = config.checkpoint.enable = False
    return config


def set_parameters(model: Any) -> None:
    """Set the same parameters on any number of ranks, which draw different ones on a CPU."""
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            whole = 0.02 * torch.randn(parameter.shape, generator=draw) + (parameter.ndim == 1)
            mesh, placements = parameter.device_mesh, parameter.placements
            parameter.copy_(distribute_tensor(whole, mesh, placements))


def plain_loss(trainer: Any) -> float:
    """Return the loss of the first step's samples, one after another."""
    samples = load_samples(None)
    steps = trainer.dataloader._planned.epoch(0, 1, lockstep=True)
    total, labeled = 0.0, 0
    (model,) = trainer.model_parts
    with torch.no_grad():
        for places in next(steps).micro_batches[0]:
            for place in places:
                tokens, labels = (torch.tensor([numbers]) for numbers in samples[place])
                positions = torch.arange(tokens.shape[1])[None]
                masks = model.get_attention_masks(positions=positions)
                hidden = model(tokens, positions=positions, attention_masks=masks)
                logits = model.lm_head(hidden)  # which the loss applies, in chunks
                total += float(cross_entropy(logits[0], labels[0], reduction="sum"))
                labeled += int((labels >= 0).sum())
    return total / labeled


def main(file: Path) -> None:
    trainer = make_config().build()
    set_parameters(trainer.model_parts[0])
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no others
    expected = plain_loss(trainer) if distributed.dist.get_world_size() == 1 else None
    logged: list[list[float]] = []

    def log(step: int, loss: float, largest: float, norm: float, *_: Any, **__: Any) -> None:
        logged.append([float(loss), float(norm)])

    trainer.metrics_processor.log = log
    trainer.train()
    state = trainer.dataloader.state_dict()
    trainer.close()
    if distributed.dist.get_rank() == 0:
        file.write_text(json.dumps({"steps": logged, "plain": expected, "state": state}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
