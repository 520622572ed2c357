"""Tables of training runs: llm-foundry on A100 and H100, NVIDIA's on H100."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.devices import DEVICES
from seqplan.costs.analytic.estimate import Estimate, Load, estimate
from seqplan.costs.analytic.hardware import ClusterHardware
from seqplan.costs.analytic.validation.published import read_published, sizes_of
from seqplan.costs.analytic.validation.published_runs import (
    NVIDIA_ASSUMED,
    bridge_rows,
    run_checks,
)
from seqplan.costs.analytic.validation.table_check import TableCheck, ValidatedRow
from seqplan.plans.scheme import Scheme

_FOUNDRY = """\
Attention is taken as FlashAttention 1, as the benchmarks are of 2023; with FlashAttention 2 the
longest sequences are predicted up to twice as fast as published.
Single rows that are far off (30B at 8K, 760M at 512 on A100) are slower than their neighbors as
published: the allocator retries if memory is full.
Micro-batches of two sequences of the 13B model are predicted 11 to 15 % fast."""

_FOUNDRY_H100 = """\
The share of an H100's peak that products reach was set to 0.66 with these rows over those of
A100 in view: the framework cancels in them."""

_FOUNDRY_FP8 = """\
FP8_GAIN is taken as 1.8; here 1.6 would fit best, in NVIDIA's runs 2.1."""

_NVIDIA = """\
The rates of stack megatron were set with the rows of an even hash, here and in bf16.
Small models of 2024 (GPT-3 5B and 20B) are predicted 7 to 20 % fast: they ran before the fusions
that the stack has."""


_FILES = {
    "a100-80gb bf16": "foundry_a100_80",
    "h100-80gb bf16": "foundry_h100",
    "h100-80gb fp8": "foundry_h100_fp8",
}
"""Identifiers of the rows of each table of llm-foundry, before their place."""


def training_checks() -> list[TableCheck]:
    """Predict tokens/s per GPU of published training runs."""
    foundry, nvidia = read_published("llm_foundry.json"), read_published("nvidia_h100.json")
    mpt = f"training throughput of MPT models on FSDP, 8 to 64 GPUs ({foundry['source']})"
    published = f"training throughput that NVIDIA publishes of its frameworks ({nvidia['source']})"
    return [
        *(
            _table(
                f"llm-foundry, {device} {precision}",
                mpt,
                foundry_runs(foundry, device, precision),
                missing,
            )
            for device, precision, missing in (
                ("a100-80gb", "bf16", _FOUNDRY),
                ("h100-80gb", "bf16", f"{_FOUNDRY_H100}\n{_FOUNDRY}"),
                ("h100-80gb", "fp8", _FOUNDRY_FP8),
            )
        ),
        _table(
            "NVIDIA, h100-80gb fp8",
            published,
            nvidia_runs(nvidia),
            _NVIDIA,
            added=bridge_rows(),
            assumed=NVIDIA_ASSUMED,
        ),
        *run_checks(),
    ]


def foundry_runs(
    figures: Any, device: str, precision: str
) -> Iterator[tuple[Estimate, ValidatedRow]]:
    """Predict MPT models on FSDP (ZeRO 3), 8 to 64 GPUs, with published values."""
    hardware = replace(DEVICES[device], attention_kernel="fa1")
    table = f"{device} {precision}"
    for place, row in enumerate(figures[table]):
        model, tokens, gpus, batch, micro, recomputed, rate = row
        deployment = Deployment(
            cluster=ClusterHardware(hardware, gpus // 8, 8),
            sizes=sizes_of(figures, model),
            zero=3,
            recompute=recomputed,
            precision=precision,
        )
        run = estimate(deployment, Scheme(), Load(seq_len=tokens, batch=batch, micro_batch=micro))
        predicted = run.tokens_per_s / gpus
        yield (
            run,
            ValidatedRow(
                group=f"{model} {tokens:,}",
                label=f"{table}, {gpus} GPUs",
                predicted=predicted,
                published=rate,
                identifier=f"{_FILES[table]}-{place}",
                stack=deployment.stack,
                source=figures["source"],
            ),
        )


def nvidia_runs(figures: Any) -> Iterator[tuple[Estimate, ValidatedRow]]:
    """Predict GPT-3, Llama 2 and Llama 3 on DGX H100, likewise."""
    hardware = replace(DEVICES["h100-80gb"], attention_kernel="cudnn", inter_rails=8)
    for place, row in enumerate(figures["h100-80gb fp8"]):
        model, software, gpus, tp, pp, virtual, ring, zero, tokens, batch, micro, rate = row
        deployment = Deployment(
            cluster=ClusterHardware(hardware, gpus // 8, 8),
            sizes=sizes_of(figures, model),
            zero=zero,
            precision="fp8",
            virtual_stages=virtual,
            sync="hidden",
            tp_overlap=0.5,
            stack="megatron",
        )
        load = Load(seq_len=tokens, batch=batch, micro_batch=micro)
        run = estimate(deployment, Scheme(tp=tp, pp=pp, ring=ring), load)
        predicted = run.tokens_per_s / gpus
        yield (
            run,
            ValidatedRow(
                group=f"{model} {tokens:,}",
                label=f"h100-80gb fp8, {gpus} GPUs, {software}",
                predicted=predicted,
                published=rate,
                identifier=f"nvidia_h100-{place}",
                stack=deployment.stack,
                source=software,
            ),
        )


def _table(
    name: str,
    what: str,
    runs: Iterator[tuple[Estimate, ValidatedRow]],
    missing: str,
    *,
    added: tuple[ValidatedRow, ...] = (),
    assumed: str = "",
) -> TableCheck:
    return TableCheck(
        name=name,
        what=what,
        unit="tokens/s per GPU",
        larger_is_better=True,
        rows=(*(row for _, row in runs), *added),
        missing=missing,
        compete=False,
        assumed=assumed,
    )
