"""Models and plans that ranks reject, and the bytes that they count."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from attached_inputs import adapted, data, model, muon, optimizer
from random_plans import one_pipeline_plan

from seqplan import Plan, Scheme, runtime

REJECTED: dict[str, tuple[dict[str, Any], str]] = {
    "seed_oss": ({"head_dim": 8}, "config.attention_dropout: set it to 0"),
    "llama4_text": (
        {"output_router_logits": True},
        "adds an auxiliary loss of its routers (config.output_router_logits) in a way that is not",
    ),
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, "layer 0 is of kind 'conv'"),
    "doge": ({"sliding_window": 8}, "(DogeAttention) makes a mask from values (dynamic mask)"),
    "bloom": ({"n_layer": 2, "n_head": 4}, "does not take registered attention functions"),
}


def subtle_models() -> dict[str, Any]:
    """Models that differ a little, or only far from the start of a call."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    models = {
        name: model("llama", max_position_embeddings=256)
        for name in ("biased", "head", "training", "far", "counting", "normalizing")
    }
    AttentionInterface.register(
        "biased",
        lambda module, q, k, v, *more, **named: sdpa_attention_forward(
            module, q, k, v + 0.1, *more, **named
        ),
    )
    AttentionMaskInterface.register("biased", sdpa_mask)
    models["biased"].set_attn_implementation("biased")
    models["head"].lm_head.register_forward_hook(
        lambda _, __, out: out + 0.1 * out.mean(1, keepdim=True)
    )
    models["training"].model.layers[0].mlp.register_forward_hook(
        lambda module, _, out: out + (0.1 * out.mean(1, keepdim=True) if module.training else 0)
    )
    models["far"].model.layers[0].mlp.register_forward_hook(
        lambda _, __, out: out + 0.1 * torch.nn.functional.pad(out, (0, 0, 200, 0))[:, :-200]
    )
    models["counting"].model.layers[1].self_attn.q_proj.register_forward_hook(
        lambda _, __, out: out * (1 + torch.ones(out.shape[1]).cumsum(0) // 8192)[:, None]
    )
    models["normalizing"].model.layers[0].more = torch.nn.BatchNorm1d(32)
    return models


def random_models() -> dict[str, Any]:
    """Models whose training mode draws random numbers for each token, which plans permit."""
    return {
        "gpt2": model("gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=256, attn_pdrop=0.0),
        "mixtral": model("mixtral", num_local_experts=4, router_jitter_noise=0.5),
    }


def rejections(groups: runtime.Communicators) -> dict[str, str]:
    from seqplan import huggingface

    messages = {}

    def rejected(case: str, unsupported: Any, **options: Any) -> None:
        try:
            options = {"optimizer": optimizer, "groups": groups, **options}
            huggingface.attach(unsupported, data(), **options)
        except ValueError as error:
            messages[case] = f"{type(error).__name__}: {error}"
            if hasattr(unsupported, "config") and case != "base":
                assert unsupported.config._attn_implementation in ("eager", "biased")

    for name, (changes, _) in REJECTED.items():
        rejected(name, model(name, **changes))
    for name, permitted in random_models().items():
        rejected(f"random {name}", permitted)
    mixing = model("llama")
    mixing.model.layers[1].mlp.register_forward_hook(lambda _, __, out: out.cumsum(1))
    rejected("mixing", mixing)
    skipping = model("llama")
    skipping.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    rejected("skipping", skipping)
    masking = model("llama")
    masking.model.layers[1].self_attn.register_forward_pre_hook(
        lambda _, positional, named: (
            positional,
            {**named, "attention_mask": torch.zeros(1, 1, 12, 12)},
        ),
        with_kwargs=True,
    )
    rejected("masking", masking)
    numbering = model("llama")
    numbering.model.layers[1].self_attn.q_proj.register_forward_hook(
        lambda _, __, out: out * torch.arange(1, 1 + out.shape[1])[:, None]
    )
    rejected("numbering", numbering)
    windowing = model("llama")
    windowing.model.layers[1].self_attn.register_forward_pre_hook(
        lambda _, positional, named: (positional, {**named, "sliding_window": 8}), with_kwargs=True
    )
    rejected("windowing", windowing)
    for case, unsupported in subtle_models().items():
        rejected(case, unsupported)
    rejected("base", adapted(0, base_seed=groups.control.rank()))
    rejected("no model", torch.nn.Linear(2, 2))
    rejected("kernel", model("llama"), kernel="cudnn")
    for case, made in (
        ("muon", muon),
        ("of others", lambda _: torch.optim.AdamW(torch.nn.Linear(2, 2).parameters())),
        ("nothing", lambda _: None),
    ):
        rejected(case, model("llama"), optimizer=made)
    rejected("plateau", model("llama"), scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau)
    nothing = groups.control.rank() == 1  # as where a rank owns no parameter
    try:
        huggingface.attach(
            model("llama"),
            data(),
            optimizer=lambda named: torch.optim.AdamW([] if nothing else named),
            groups=groups,
        )
    except ValueError as error:
        messages["owns nothing"] = f"{type(error).__name__}: {error}"
    return messages


def memory(groups: runtime.Communicators) -> dict[str, Any]:
    """What ranks hold of a model in bf16, of one with adapters; the message about too much."""
    from seqplan import huggingface

    held: dict[str, Any] = {}
    whole, adapters = model("llama").bfloat16(), adapted(0)
    for name, attached_model in (("whole", whole), ("adapters", adapters)):
        sizes = {p: p.numel() for p in attached_model.parameters()}
        trained = sum(size for p, size in sizes.items() if p.requires_grad)
        job = huggingface.attach(attached_model, data(), optimizer=optimizer, groups=groups)
        held[name] = (job.held_bytes, trained, sum(sizes.values()) - trained)
        held[f"{name} message"] = str(job.held_bytes)
    enough = held["whole"][0].total
    fitting = model("llama").bfloat16()
    huggingface.attach(fitting, data(), optimizer=optimizer, groups=groups, resident_bytes=enough)
    try:
        huggingface.attach(
            model("llama"), data(), optimizer=optimizer, groups=groups, resident_bytes=enough
        )
    except ValueError as error:
        held["too much"] = str(error)
    return held


def unlike_plans(rank: int, groups: runtime.Communicators) -> list[str]:
    """Errors of ranks for plans that differ from the others' or are missing."""
    from seqplan import huggingface

    messages = []
    job = huggingface.attach(model("llama"), data(), optimizer=optimizer, groups=groups)
    short = one_pipeline_plan(Scheme(ring=4), [30, 4])
    other = one_pipeline_plan(Scheme(ulysses=4), [9, 12 + (rank == 2)], step=1)

    def failing() -> Iterator[Plan]:
        yield short
        if rank == 1:
            raise ValueError("no lengths")
        yield other

    rows = [[int(rank == 3 and id == 5)] * 40 for id in range(9)]
    unlike = huggingface.attach(
        model("llama"), runtime.data.IndexedTokens(rows), optimizer=optimizer, groups=groups
    )
    single = replace(one_pipeline_plan(Scheme(ring=4), [30, 4]), ids=(5, 6))
    for attached, following in ((job, [short, other]), (job, failing()), (unlike, [single])):
        attached.next_step = 0
        try:
            for step in attached.steps(following):
                attached.run(step)
        except runtime.errors.PlanError as error:
            messages.append(str(error))
    return messages
