"""Models of transformers in a rehearsal: the probe, which compares values, looks at a CPU twin."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from cases import DEVICE, LENGTHS, SIZES, Result, count, make_plan, rehearsal, spread_rows

from seqplan import huggingface, rank_view, runtime
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.experts import dispatch
from seqplan.runtime.huggingface import inspection
from seqplan.runtime.huggingface.attached import AttachedModel
from seqplan.runtime.sources.consumer import Step

EXPERTS = 4

OPTIONS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": 256},
    "Gemma2": {"sliding_window": 256, "query_pre_attn_scalar": 64},
    "Qwen3Moe": {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 256},
    "GptOss": {"sliding_window": 128, "num_local_experts": EXPERTS, "num_experts_per_tok": 2},
}


def run_attached(
    kind: str, scheme: str = "u2", world: int = 2, layers: int = 2, *, expert_parallel: int = 1
) -> Result:
    """Three steps of an attached model on rank 0."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        hidden_size=SIZES["hidden"],
        num_hidden_layers=layers,
        num_attention_heads=SIZES["heads"],
        num_key_value_heads=SIZES["kv_heads"],
        intermediate_size=SIZES["ffn"],
        vocab_size=SIZES["vocab"],
        head_dim=SIZES["hidden"] // SIZES["heads"],
        **OPTIONS[kind],
    )
    make = getattr(transformers, f"{kind}ForCausalLM")
    twin = make(copy.deepcopy(config))
    probe = inspection.probe

    def probe_twin(attached: AttachedModel) -> Any:
        on_host = AttachedModel(twin)
        twin.set_attn_implementation(attached.lm.config._attn_implementation)
        on_host.layers.attach(twin)
        return probe(on_host)

    inspection.probe = probe_twin
    try:
        with rehearsal(0, world) as (recording, distributed):
            dispatch.read_counts = spread_rows(recording, EXPERTS)
            groups = runtime.Communicators.create()
            with DEVICE:
                model = make(config).to(torch.bfloat16)
            job = huggingface.attach(
                model,
                SeededTokens(SIZES["vocab"], 0),
                optimizer=lambda named: torch.optim.AdamW([p for _, p in named], foreach=True),
                groups=groups,
                expert_parallel=expert_parallel,
            )
            result: Result = {"layers": layers, "micro_batches": 1}
            for number in range(3):
                plan = make_plan(scheme, world, [length - number for length in LENGTHS], [""])
                view = rank_view(replace(plan, expert_parallel=expert_parallel), 0)
                recording.restart()
                before = recording.bytes_now
                work = job._parts.prepare(view)
                result["prepare"] = count(recording)
                recording.restart()
                job.run(Step(view, work), clip_norm=1.0)
                result["step"] = count(recording)
                del work
                result["leaked"] = recording.bytes_now - before
            result["groups"] = distributed.made
            result["faults"] = {
                f"{kind} ({line})": n for (kind, line), n in recording.faults.items()
            }
            return result
    finally:
        inspection.probe = probe


ATTACHED: dict[str, Callable[[], Result]] = {
    **{f"attached {kind}": partial(run_attached, kind) for kind in OPTIONS},
    "attached experts": partial(run_attached, "Qwen3Moe", expert_parallel=2),
}
