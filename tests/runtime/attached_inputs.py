"""Tiny models of transformers, plans, data and optimizers to attach."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from random_plans import one_pipeline_plan, random_plan

from seqplan import Plan, Scheme, runtime

RANKS, VOCAB = 4, 61

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}

LATENT = {
    "q_lora_rank": 12,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 6,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
}

SLIDING = {
    "head_dim": 8,
    "sliding_window": 13,
    "layer_types": ["sliding_attention", "full_attention"],
}

MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        "tie_word_embeddings": True,
        "max_position_embeddings": 30,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    },
    "deepseek_v3": LATENT,
    "gemma2": {**SLIDING, "attn_logit_softcapping": 0.5},
    "jetmoe": {"kv_channels": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {
        **SLIDING,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "output_router_logits": True,
        "router_aux_loss_coef": 0.1,
    },
    "llama4_text": {
        "head_dim": 8,
        "num_local_experts": 4,
        "intermediate_size_mlp": 48,
        "attention_chunk_size": 13,
        "no_rope_layers": [1, 0],
        "floor_scale": 8,
    },
}
"""Angles by a document's length, latent attention, windows, soft caps, sinks, routers' loss,
chunks, and queries tuned by position."""


def plans() -> list[Plan]:
    rng = np.random.default_rng(2)
    some = [random_plan(rng, RANKS, step=step, heads=4, longest=60) for step in range(2)]
    return [*some, one_pipeline_plan(Scheme(ulysses=2, ring=2), [1, 2, 40], step=2)]


class Rows(Mapping[int, dict[str, Any]]):
    """Columns by sample id, made of the id alone."""

    def __getitem__(self, id: int) -> dict[str, Any]:
        rng = np.random.default_rng(id)
        tokens, mask = rng.integers(0, VOCAB, 60), rng.random(60) < 0.7
        labels = np.where(mask, tokens, -100)
        return {"input_ids": tokens, "labels": labels, "mask": mask, "weights": rng.random(60)}

    def __iter__(self) -> Iterator[int]:
        return iter(range(1000))

    def __len__(self) -> int:
        return 1000


def data() -> runtime.data.IndexedTargets:
    return runtime.data.IndexedTargets(Rows(), "input_ids", mask="mask", weights="weights")


def model(name: str, seed: int = 0, **changes: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {**SIZES, **MODELS.get(name, {}), **changes}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(name, **sizes)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def adapted(seed: int, base_seed: int = 0) -> Any:
    from peft import LoraConfig, get_peft_model

    base = model("llama", base_seed)
    torch.manual_seed(seed)
    wrapped = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear"))
    for name, value in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.02)
    return wrapped


def optimizer(parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
    trained = [(name, value) for name, value in parameters if value.requires_grad]
    decayed = [entry for entry in trained if "norm" not in entry[0]]
    rest = [entry for entry in trained if "norm" in entry[0]]
    groups: Any = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=1e-2, eps=1e-6)


def muon(parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
    """Muon, which finds no matrix if sharding is flat, and reports nothing itself."""
    values = [value for _, value in parameters]
    matrices = [value for value in values if value.dim() == 2]
    rest = [value for value in values if value.dim() < 2]
    return runtime.JoinedOptimizer(
        [torch.optim.Muon([{"params": matrices}]), torch.optim.AdamW([{"params": rest}])]
    )


def warm_up(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)


CASES: dict[str, Callable[[int], Any]] = {
    **{name: (lambda seed, name=name: model(name, seed)) for name in MODELS},
    "LoRA": adapted,
}
