"""Models of transformers with split experts on ranks, and the same by plain code."""

import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from expert_runs import RoutedCase
from staged_runs import adamw

from seqplan import Plan, runtime

RANKS, EXPERTS, VOCAB, STEPS, CLIP, AUX = 4, 8, 61, 2, 1.0, 0.1
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "sliding_window": None,
}
LATENT = {
    "q_lora_rank": 12,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 8,
}
WITH_LOSS = {"output_router_logits": True, "router_aux_loss_coef": AUX}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_moe": WITH_LOSS,
    "mixtral": WITH_LOSS,
    "gpt_oss": {"sliding_window": 13, "layer_types": ["sliding_attention", "full_attention"]},
    "deepseek_v3": LATENT,
}
ADAPTED = "qwen3_moe with adapters"
"""LoRA on attention, whose experts are frozen and split."""
MODED = "qwen3_moe"
"""The model whose micro-batches have random recomputation modes."""
LONG = ("qwen3_moe",) if "SEQPLAN_LONG" in os.environ else ()
RESUMED = ("deepseek_v3", *LONG)


def make_model(name: str, seed: int, dtype: torch.dtype = torch.float64, **sizes: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    if name == ADAPTED:
        return make_adapted()
    torch.manual_seed(seed)
    config = AutoConfig.for_model(name, **{**SIZES, **MODELS[name], **sizes})
    return AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=dtype, experts_implementation="eager"
    )


def make_adapted() -> Any:
    import peft

    model = peft.get_peft_model(
        make_model("qwen3_moe", 0), peft.LoraConfig(target_modules=["q_proj", "v_proj"])
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "lora_" in key:
                value.copy_(torch.randn_like(value) * 0.1)
    return model


def load() -> None:
    """Import the models' code, and make the table of how transformers reads and writes weights.

    Every rank would do it for itself.
    """
    models = [make_model(name, 0) for name in MODELS]
    with tempfile.TemporaryDirectory() as folder:
        models[0].save_pretrained(folder)


def expert_plans(degree: int, modes: bool = False) -> list[Plan]:
    """Two strategies, with idle ranks, ranks without tokens, and a step without overlap."""
    return RoutedCase(RANKS, 27, expert_parallel=degree, steps=STEPS, modes=modes).plans()


def attach(name: str, rank: int, degree: int, **options: Any) -> Any:
    from seqplan import huggingface

    with torch.device("meta" if rank and name != ADAPTED else "cpu"):
        model = make_model(name, rank)
    return huggingface.attach(
        model,
        runtime.data.SeededTokens(VOCAB, 5),
        optimizer=adamw,
        loss_rows=16,
        expert_parallel=degree,
        device=torch.device("cpu"),
        **options,
    )


def train_on_ranks(rank: int, world: int, name: str, degree: int, folder: str) -> dict[str, Any]:
    """Train, with values of tokens, logits, and a checkpoint on the way."""
    job = attach(name, rank, degree, reduce="micro-batch" if name == "mixtral" else "step")
    held = [value.shape[0] for key, value in job.model.named_parameters() if ".experts." in key]
    results, values, logits = [], [], None
    for step in job.steps(iter(expert_plans(degree, modes=name == MODED))):
        results.append(job.run(step, clip_norm=CLIP))
        if step.view.step == 0:
            values = [(id, value.tolist()) for id, value in job.token_values(step)]
            with job.evaluation() as evaluated:
                logits = evaluated(input_ids=torch.arange(10).view(2, 5)).logits.numpy()
            if name in RESUMED:
                job.save_checkpoint(folder)
    outcome = {
        "losses": [result.loss for result in results],
        "norms": [result.gradient_norm for result in results],
        "parameters": {name: value.numpy() for name, value in job.states.export()},
        "values": values,
        "logits": logits,
        "held": held,
    }
    job.close()
    return outcome


def resume_on_ranks(rank: int, world: int, name: str, degree: int, folder: str) -> dict[str, Any]:
    """Go on from the checkpoint in the middle, with another degree; read the saved model."""
    from transformers import AutoModelForCausalLM

    job = attach(name, rank, degree)
    job.resume(folder)
    plans = expert_plans(degree)[job.next_step :]
    results = [job.run(step, clip_norm=CLIP) for step in job.steps(iter(plans))]
    losses = [result.loss for result in results]
    job.save_pretrained(Path(folder) / "model")
    parameters = {name: value.numpy() for name, value in job.states.export()}
    job.close()
    saved = {}
    if not rank:
        model = AutoModelForCausalLM.from_pretrained(Path(folder) / "model", dtype=torch.float64)
        saved = {f"model.{key}": value.detach().numpy() for key, value in model.named_parameters()}
    return {"losses": losses, "parameters": parameters, "saved": saved}


def train_plainly(name: str) -> dict[str, Any]:
    """The same by plain code, each document alone, and the routers' loss of all together."""
    plain = make_model(name, 0)
    trained = {key: value for key, value in plain.named_parameters() if value.requires_grad}
    stepping = adamw(list(trained.items()))
    base = plain.get_base_model() if name == ADAPTED else plain
    data = runtime.data.SeededTokens(VOCAB, 5)
    routed = getattr(base.config, "output_router_logits", False)
    losses, norms, values, logits = [], [], [], None
    for plan in expert_plans(1):
        stepping.zero_grad()
        total: Any = 0.0
        routers = []
        for sample, length in zip(plan.ids, plan.lengths, strict=True):
            tokens = torch.from_numpy(data.tokens(sample, 0, length))
            output = plain(input_ids=tokens[None])
            scores = output.logits[0, :-1].log_softmax(-1).gather(1, tokens[1:, None])
            total = total - scores.sum() / plan.loss_tokens
            routers.append(output.router_logits if routed else ())
        if routed:
            together = tuple(torch.cat(layer) for layer in zip(*routers, strict=True))
            function = vars(sys.modules[type(base).__module__])["load_balancing_loss_func"]
            total = total + AUX * function(together, EXPERTS, 2)
        total.backward()
        for parameter in trained.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        norm = float(sum(p.grad.square().sum() for p in trained.values()).sqrt())
        for parameter in trained.values():
            parameter.grad.mul_(min(1.0, CLIP / (norm + 1e-6)))
        stepping.step()
        losses.append(total.item())
        norms.append(norm)
        if plan.step == 0:
            with torch.no_grad():
                for sample, length in zip(plan.ids, plan.lengths, strict=True):
                    tokens = torch.from_numpy(data.tokens(sample, 0, length))
                    scores = plain(input_ids=tokens[None]).logits[0, :-1].log_softmax(-1)
                    known = scores.gather(1, tokens[1:, None])[:, 0].tolist()
                    values.append((sample, [0.0, *known]))
                logits = plain(input_ids=torch.arange(10).view(2, 5)).logits.numpy()
    return {
        "losses": losses,
        "norms": norms,
        "parameters": {f"model.{key}": value.detach().numpy() for key, value in trained.items()},
        "values": values,
        "logits": logits,
    }


def train_all(rank: int, world: int, folder: str, degrees: Mapping[str, int]) -> dict[Any, Any]:
    """Every training of these ranks; one goes on from a checkpoint with another degree."""
    results: dict[Any, Any] = {}
    for name, degree in degrees.items():
        where = f"{folder}/{name}"
        results["train", name] = train_on_ranks(rank, world, name, degree, where)
        if name in RESUMED:
            results["resume", name] = resume_on_ranks(rank, world, name, 6 - degree, where)
    return results


def train_all_plainly(names: Iterable[str]) -> dict[str, Any]:
    return {name: train_plainly(name) for name in names}


def reject_on_ranks(rank: int, world: int) -> dict[str, str]:
    """The messages of models whose experts cannot be split."""
    import peft
    from transformers import AutoModelForCausalLM, JetMoeConfig, LlamaConfig

    from seqplan import huggingface

    def attempt(model: Any, degree: int) -> str:
        try:
            huggingface.attach(
                model, runtime.data.SeededTokens(VOCAB, 5), optimizer=adamw, expert_parallel=degree
            )
        except (ValueError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        return "attached"

    def small(config: Any) -> Any:
        return AutoModelForCausalLM.from_config(config, attn_implementation="eager")

    sizes = {
        name: SIZES[name]
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    }
    adapted = peft.get_peft_model(
        make_model("qwen3_moe", 0, torch.float32),
        peft.LoraConfig(
            target_modules=["q_proj"],
            target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        ),
    )
    return {
        "ranks": attempt(make_model("qwen3_moe", 0), 3),
        "dense": attempt(small(LlamaConfig(**sizes, num_attention_heads=4)), 2),
        "unregistered": attempt(
            small(JetMoeConfig(**sizes, num_attention_heads=4, num_local_experts=EXPERTS)), 2
        ),
        "adapted": attempt(adapted, 2),
    }


def largest_difference(mine: dict[str, Any], others: dict[str, Any]) -> float:
    """Of parameters by name, absolute."""
    assert mine.keys() == others.keys()
    return max(float(np.abs(mine[name] - others[name]).max()) for name in mine)


def relative(mine: list[float], others: list[float]) -> float:
    """The largest difference of numbers, relative."""
    pairs = zip(mine, others, strict=True)
    return float(np.max([abs(one - other) / abs(other) for one, other in pairs]))
