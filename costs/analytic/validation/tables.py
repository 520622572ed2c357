"""The tables of published figures that the analytic model is compared with.

Attention and training by USP (arXiv 2405.07719), latencies and MaxLen by Hydraulis's authors
(arXiv 2412.07894), all-to-alls by FlexSP (arXiv 2412.01523); training and kernels of other sources
are in separate modules. ``figures`` has the published values, and the texts of all tables.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seqplan.costs.analytic.attention import PERMUTE_PASSES, attention_ms
from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.estimate import Load, estimate, model_flops
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.analytic.gpus.kernels import memory_ms
from seqplan.costs.analytic.gpus.links import Group, all_to_all_ms
from seqplan.costs.analytic.memory import activation_bytes_per_token, state_bytes
from seqplan.costs.analytic.terms import stage_terms
from seqplan.costs.analytic.validation.expert_runs import expert_checks
from seqplan.costs.analytic.validation.kernel_tables import kernel_checks
from seqplan.costs.analytic.validation.longest_sequences import longest_sequence_checks
from seqplan.costs.analytic.validation.memory_figures import memory_checks
from seqplan.costs.analytic.validation.published import read_published
from seqplan.costs.analytic.validation.table_check import TableCheck, ValidatedRow, make_check
from seqplan.costs.analytic.validation.training_tables import training_checks
from seqplan.costs.memory import Memory
from seqplan.costs.model_files.listed_models import MODELS
from seqplan.costs.model_sizes import ModelSizes
from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.plans.scheme import Scheme

A800_PROFILES = ("llama-7b", "llama-13b", "llama-32b")
A800_LENGTHS = (2048, 8192, 32768)
A800_GPUS = 64
FLEXSP_TOKENS = 65536


def checks() -> list[TableCheck]:
    """Return all tables, in the order of this module."""
    usp = read_published("usp.json")
    return [
        _attention_table(usp, "table3", "a100-80gb"),
        _attention_table(usp, "table4", "l20-48gb"),
        _training_table(usp),
        *(_latency_check(name) for name in A800_PROFILES),
        *(_max_len_check(name) for name in A800_PROFILES),
        *longest_sequence_checks(),
        *memory_checks(),
        _all_to_all_check(),
        *training_checks(),
        *expert_checks(),
        *kernel_checks(),
    ]


def _attention_table(usp: Any, table: str, hardware: str) -> TableCheck:
    """Predict tables 3 and 4: attention alone on 8 GPUs, 32 heads of 128, 8 key/value heads."""
    cluster = ClusterHardware(DEVICES[hardware], 1, 8)
    sizes = ModelSizes(hidden=4096, layers=1, heads=32, kv_heads=8, ffn=1, vocab=1)
    rows = []
    for row in usp[table]["rows"]:
        scheme = Scheme(ulysses=row["ulysses"], ring=8 // row["ulysses"])
        passes = (False, True) if table == "table3" and row["seqlen"] == "128K" else (False,)
        for kind, balanced in (("basic_ring", False), ("load_balanced_ring", True)):
            ms = sum(
                float(
                    attention_ms(
                        cluster,
                        sizes,
                        scheme,
                        [_tokens(row["seqlen"])],
                        backward=backward,
                        balanced=balanced,
                    ).total
                )
                for backward in passes
            )
            group = f"{row['seqlen']} {'balanced' if balanced else 'basic'}"
            rows.append(ValidatedRow(group, str(scheme), 1000 / ms, row[kind]))
    return make_check(f"usp-{table}", rows, what=usp[table]["what"])


def _training_table(usp: Any) -> TableCheck:
    """Predict table 5: LLaMA2-7B on 8 A800; FLOPs count attention whole, as its MFU implies."""
    cluster = ClusterHardware(DEVICES["a800-80gb"], 1, 8)
    sizes = ModelSizes.from_mapping(MODELS["llama-7b"])
    deployment = Deployment(cluster=cluster, sizes=sizes)
    rows = []
    for row in usp["table5"]["rows"]:
        scheme = Scheme(tp=row["tp"], ulysses=row["ulysses"], ring=row["ring"])
        length = _tokens(row["seqlen"])
        load = Load(seq_len=length, batch=row["global_batch"])
        iteration_s = estimate(deployment, scheme, load).iteration_ms / 1e3
        flops = model_flops(sizes, length, causal=False) * row["global_batch"]
        rate = flops / iteration_s / cluster.gpus / 1e12
        rows.append(ValidatedRow(row["seqlen"], str(scheme), rate, row["tflops_per_gpu"]))
    return make_check("usp-table5", rows, what=usp["table5"]["what"])


def _latency_check(name: str) -> TableCheck:
    """Predict T(l) of each unflagged scheme, times its GPUs: the GPU time that a sequence costs."""
    profile, deployment = _a800(name)
    rows = []
    for length in A800_LENGTHS:
        for entry in profile.schemes:
            if entry.flag is None and length <= profile.memory.max_len(
                entry.scheme, A800_GPUS, length
            ):
                terms = stage_terms(deployment, entry.scheme, [length])
                ms = sum(float(value) for value in terms.values())
                published = entry.latency.micro_batch_ms([length])
                gpus = entry.scheme.gpus
                rows.append(
                    ValidatedRow(f"{length:,}", str(entry.scheme), ms * gpus, published * gpus)
                )
    return make_check("latency", rows, profile=profile.name)


def _max_len_check(name: str) -> TableCheck:
    """Predict MaxLen with the published context and margin, our states and activations, 64 GPUs."""
    profile, deployment = _a800(name)
    deployment = replace(deployment, sequence_parallel=False)
    sharded, layers, embeddings = state_bytes(deployment)
    published = profile.memory
    ours = Memory(
        capacity_bytes=published.capacity_bytes,
        context_bytes=published.context_bytes,
        margin_bytes=published.margin_bytes,
        sharded_state_bytes=((None, sharded),),
        resident_layer_bytes=layers,
        resident_embedding_bytes=embeddings,
        activation_bytes_per_token={
            tp: activation_bytes_per_token(deployment, tp)
            for tp in published.activation_bytes_per_token
        },
    )
    rows, agreed = [], 0
    for entry in profile.schemes:
        predicted = ours.max_len(entry.scheme, A800_GPUS, 0)
        stated = published.max_len(entry.scheme, A800_GPUS, 0)
        agreed += (predicted > 0) == (stated > 0)
        if stated:
            rows.append(ValidatedRow("MaxLen", str(entry.scheme), float(predicted), float(stated)))
    return make_check(
        "max-len",
        rows,
        profile=profile.name,
        gpus=A800_GPUS,
        agreed=agreed,
        schemes=len(profile.schemes),
    )


def _a800(name: str) -> tuple[Profile, Deployment]:
    profile = load_shipped(f"{name}-a800-80gb").restrict(measured=True)
    sizes = ModelSizes.from_mapping({**MODELS[name], "vocab": profile.shape.vocab or 0})
    cluster = ClusterHardware(DEVICES["a800-80gb"], A800_GPUS // 8, 8)
    return profile, Deployment(cluster=cluster, sizes=sizes, gradient_bytes=2)


def _all_to_all_check() -> TableCheck:
    """Predict eight all-to-alls a layer; a node's 8 GPUs share 400 Gb/s, as FlexSP states."""
    profile = load_shipped("gpt-7b-a100-40gb")
    hardware = replace(DEVICES["a100-40gb"], inter_gb_s=400 / 8 / 8)
    cluster = ClusterHardware(hardware, 8, 8)
    rows = []
    for degree, bandwidth in profile.document["published"]["all_to_all_bandwidth"].items():
        payload = 2 * profile.shape.hidden * FLEXSP_TOKENS / int(degree)
        once = all_to_all_ms(cluster, Group(int(degree)), payload)
        once += memory_ms(hardware, PERMUTE_PASSES * payload)
        count = 8 * profile.shape.layers
        published = count * payload / 2**20 / bandwidth
        rows.append(ValidatedRow("all-to-all", f"u{degree}", float(count * once), published))
    return make_check("all-to-all", rows, tokens=f"{FLEXSP_TOKENS:,}")


def _tokens(text: str) -> int:
    return int(text.removesuffix("K")) * 1024
