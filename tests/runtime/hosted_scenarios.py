"""What ranks do with Hugging Face models that they host: training, refusals, resuming, examples."""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from random_plans import one_pipeline_plan, random_plan

from seqplan import runtime
from seqplan.plans.plan import Plan
from seqplan.plans.scheme import Scheme

EXAMPLES = Path(__file__).parents[2] / "examples"
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

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "seed_oss": ({"head_dim": 8}, "config.attention_dropout: set it to 0"),
    "llama4_text": (
        {"output_router_logits": True},
        "adds an auxiliary loss of its routers (config.output_router_logits) in a way that is not",
    ),
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, "layer 0 is of kind 'conv'"),
    "bloom": ({"n_layer": 2, "n_head": 4}, "does not take registered attention functions"),
}


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


def data() -> runtime.IndexedTargets:
    return runtime.IndexedTargets(Rows(), "input_ids", mask="mask", weights="weights")


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
    """Which has no matrix to take where owners hold slices, and says nothing itself."""
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


def trained_on_ranks(
    rank: int, groups: runtime.Communicators, folder: Path, url: str, name: str
) -> Any:
    """Losses, norms, what was reported, log-probabilities, a local batch's logits, read back."""
    from transformers import AutoModelForCausalLM

    from seqplan.runtime import huggingface

    reports: list[huggingface.StepReport] = []
    hosted_model = CASES[name](rank)
    if name == "llama":
        hosted_model.gradient_checkpointing_enable({"use_reentrant": False})
    if name == "gemma2" and rank == 0:  # which takes seconds
        # Of one layer, and all of it but making code.
        hosted_model.model.layers[1].self_attn.compile(backend="eager")
    job = huggingface.host(
        hosted_model,
        data(),
        optimizer=optimizer,
        scheduler=warm_up,
        loss_rows=16,
        callbacks=[reports.append],
        groups=groups,
        owners="matrices" if name in ("gemma2", "llama") else "slices",
        reduce="micro-batch" if name in ("gpt_oss", "llama", "LoRA") else "step",
    )
    results, values, logits = [], [], None
    sources: dict[str, Any] = {"LoRA": plans(), "deepseek_v3": url}
    for step in job.steps(sources.get(name, folder / "plans.jsonl")):
        results.append(job.run(step, clip_norm=1.0))
        if step.view.step == 1:  # between steps, and training goes on
            values = job.token_values(step)
            with job.evaluation() as lent:
                logits = lent(input_ids=torch.arange(10).view(2, 5)).logits.numpy()
    job.save_pretrained(folder / name)
    alike = True
    if rank == 0 and name != "LoRA":
        stored = AutoModelForCausalLM.from_pretrained(folder / name).state_dict()
        alike = all(torch.equal(stored[n], v) for n, v in hosted_model.state_dict().items())
    elif rank == 0:
        from peft import PeftModel

        again = PeftModel.from_pretrained(model("llama"), folder / name).state_dict()
        alike = all(torch.equal(again[n], v) for n, v in hosted_model.state_dict().items())
    return {
        "losses": [result.loss for result in results],
        "norms": [result.gradient_norm for result in results],
        "reports": reports,
        "values": [(id, value) for id, value in values],
        "logits": logits,
        "alike": alike,
        "attention": hosted_model.config._attn_implementation,
    }


def trained_plainly(name: str) -> Any:
    """The same by plain code, each document alone."""
    plain = CASES[name](0)
    stepping = optimizer(plain.named_parameters())
    schedule = warm_up(stepping)
    trained = [value for value in plain.parameters() if value.requires_grad]
    losses, norms, values, logits = [], [], [], None
    routers: list[tuple[torch.Tensor, ...]] = []
    routed = getattr(plain.config, "output_router_logits", False)

    def of(id: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = Rows()[id]
        tokens = torch.from_numpy(row["input_ids"][:length])
        with torch.no_grad():  # rotary embeddings forget the document before
            plain(input_ids=tokens[None, :1])
        output = plain(input_ids=tokens[None])
        routers.append(output.router_logits if routed else ())
        new = output.logits[0].log_softmax(-1)
        weights = torch.from_numpy(row["mask"] * row["weights"])[1:length]
        return new[:-1].gather(1, tokens[1:, None])[:, 0], weights

    for plan in plans():
        batch = list(zip(plan.ids, plan.lengths, strict=True))
        stepping.zero_grad()
        routers.clear()
        each = [of(*entry) for entry in batch]
        divisor = sum(weights.sum().item() for _, weights in each)
        loss = -sum((new * weights).sum() for new, weights in each) / divisor  # type: ignore[operator]
        if routed:  # by transformers' own function, of all documents together
            function = vars(sys.modules[type(plain).__module__])["load_balancing_loss_func"]
            together = tuple(torch.cat(layer) for layer in zip(*routers, strict=True))
            loss = loss + 0.1 * function(together, plain.num_experts, plain.num_experts_per_tok)
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(trained, 1.0).item())
        stepping.step()
        schedule.step()
        if plan.step == 1:
            with torch.no_grad():
                values = [(id, of(id, length)[0].numpy()) for id, length in batch]
                logits = plain(input_ids=torch.arange(10).view(2, 5)).logits.numpy()
    return {"losses": losses, "norms": norms, "values": values, "logits": logits}


def refusals(groups: runtime.Communicators) -> dict[str, str]:
    from seqplan.runtime import huggingface

    said = {}

    def refused(what: str, unsupported: Any) -> None:
        try:
            huggingface.host(unsupported, data(), optimizer=optimizer, groups=groups)
        except ValueError as error:
            said[what] = f"{type(error).__name__}: {error}"
            if hasattr(unsupported, "config") and what != "base":
                assert unsupported.config._attn_implementation == "eager", "left as it was"

    for name, (changes, _) in REFUSED.items():
        refused(name, model(name, **changes))
    mixing = model("llama")
    mixing.model.layers[1].mlp.register_forward_hook(lambda _, __, out: out.cumsum(1))
    refused("mixing", mixing)
    skipping = model("llama")
    skipping.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    refused("skipping", skipping)
    masking = model("llama")
    masking.model.layers[1].self_attn.register_forward_pre_hook(
        lambda _, given, named: (given, {**named, "attention_mask": torch.zeros(1, 1, 12, 12)}),
        with_kwargs=True,
    )
    refused("masking", masking)
    numbering = model("llama")
    numbering.model.layers[1].self_attn.q_proj.register_forward_hook(
        lambda _, __, out: out * torch.arange(1, 1 + out.shape[1])[:, None]
    )
    refused("numbering", numbering)
    windowing = model("llama")
    windowing.model.layers[1].self_attn.register_forward_pre_hook(
        lambda _, given, named: (given, {**named, "sliding_window": 8}), with_kwargs=True
    )
    refused("windowing", windowing)
    refused("base", adapted(0, base_seed=groups.control.rank()))
    refused("no model", torch.nn.Linear(2, 2))
    try:
        huggingface.host(model("llama"), data(), optimizer=muon, groups=groups)
    except ValueError as error:
        said["muon"] = f"{type(error).__name__}: {error}"
    return said


def memory(groups: runtime.Communicators) -> dict[str, Any]:
    """What ranks hold of a model in bf16, of one with adapters; what is said of too much."""
    from seqplan.runtime import huggingface

    held: dict[str, Any] = {}
    whole, adapters = model("llama").bfloat16(), adapted(0)
    for name, hosted_model in (("whole", whole), ("adapters", adapters)):
        sizes = {p: p.numel() for p in hosted_model.parameters()}
        trained = sum(size for p, size in sizes.items() if p.requires_grad)
        job = huggingface.host(hosted_model, data(), optimizer=optimizer, groups=groups)
        held[name] = (job.held_bytes, trained, sum(sizes.values()) - trained)
        held[f"{name} said"] = str(job.held_bytes)
    enough = held["whole"][0].total
    fitting = model("llama").bfloat16()
    huggingface.host(fitting, data(), optimizer=optimizer, groups=groups, resident_bytes=enough)
    try:
        huggingface.host(
            model("llama"), data(), optimizer=optimizer, groups=groups, resident_bytes=enough
        )
    except ValueError as error:
        held["too much"] = str(error)
    return held


def unlike_plans(rank: int, groups: runtime.Communicators) -> list[str]:
    """What ranks say to plans that are not those of the others, or cannot be had."""
    from seqplan.runtime import huggingface

    said = []
    job = huggingface.host(model("llama"), data(), optimizer=optimizer, groups=groups)
    short = one_pipeline_plan(Scheme(ring=4), [30, 4])
    other = one_pipeline_plan(Scheme(ulysses=4), [9, 12 + (rank == 2)], step=1)

    def failing() -> Iterator[Plan]:
        yield short
        if rank == 1:
            raise ValueError("no lengths")
        yield other

    for following in ([short, other], failing()):
        job.next_step = 0
        try:
            for step in job.steps(following):
                job.run(step)
        except runtime.PlanError as error:
            said.append(str(error))
    return said


def resumed(rank: int, groups: runtime.Communicators, folder: Path) -> dict[str, Any]:
    """Losses of three steps with dropout; and of two, then one of a job that goes on from there."""
    from seqplan.runtime import huggingface

    def job(seed: int) -> huggingface.Job:
        dropping = {"resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.0}
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
        made = huggingface.host(
            model("gpt2", **sizes, **dropping),
            data(),
            optimizer=optimizer,
            scheduler=warm_up,
            groups=groups,
        )
        torch.manual_seed(100 * seed + rank)
        return made

    straight = job(1)
    losses = [straight.run(step).loss for step in straight.steps(plans())]
    before = job(1)
    first = [before.run(step).loss for step in before.steps(plans()[:2])]
    before.save_checkpoint(folder, {"seen": [1, 2]})
    after = job(2)
    empty = after.resume(folder / "nothing")
    user = after.resume(folder)
    second = [after.run(step).loss for step in after.steps(plans())]
    return {"straight": losses, "parts": first + second, "user": user, "empty": empty}


def page(folder: Path) -> tuple[int, str]:
    """The next step after the program of the page, and the dtype of what it has saved."""
    from transformers import AutoModelForCausalLM

    from seqplan.runtime import huggingface

    text = (EXAMPLES.parent / "docs" / "huggingface.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {
        "AutoModelForCausalLM": AutoModelForCausalLM,
        "huggingface": huggingface,
        "runtime": runtime,
        "torch": torch,
        "name": folder / "llama",
        "dataset": Rows(),
    }
    os.chdir(folder)
    exec(program, names)
    stored = AutoModelForCausalLM.from_pretrained("trained").dtype
    return names["job"].next_step, str(stored)


def on_rank(rank: int, world_size: int, folder: Path, url: str) -> dict[str, Any]:
    groups = runtime.Communicators.create(200)
    return {
        **{name: trained_on_ranks(rank, groups, folder, url, name) for name in CASES},
        "refusals": refusals(groups),
        "memory": memory(groups),
        "unlike": unlike_plans(rank, groups),
        "resumed": resumed(rank, groups, folder / "checkpoints"),
        "page": page(folder),
    }


def beside() -> dict[str, Any]:
    return {name: trained_plainly(name) for name in CASES}


def examples(rank: int, world_size: int, ports: list[int], folder: Path) -> Any:
    """What each example's ``main`` returns, started as by torchrun; the saved model's words."""
    from transformers import AutoConfig

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "RANK": str(rank), "WORLD_SIZE": str(world_size)}
    outcomes = []
    for port, name, arguments in (
        (ports[0], "fine_tune", [["--output", str(folder / "fine-tuned")]]),
        (ports[1], "policy_gradient", []),
    ):
        os.environ["MASTER_PORT"] = str(port)
        outcomes.append(runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](*arguments))
    return *outcomes, AutoConfig.from_pretrained(folder / "fine-tuned").vocab_size
