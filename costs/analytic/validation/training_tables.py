"""Tables of training runs: llm-foundry on A100 and H100, NVIDIA's on H100."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.estimate import Estimate, Load, estimate
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.analytic.validation.published import read_published, sizes_of
from seqplan.costs.analytic.validation.published_runs import bridge_rows, run_checks
from seqplan.costs.analytic.validation.table_check import TableCheck, ValidatedRow, make_check
from seqplan.plans.scheme import Scheme

FOUNDRY_TABLES = {
    "a100-80gb bf16": "foundry_a100_80",
    "h100-80gb bf16": "foundry_h100",
    "h100-80gb fp8": "foundry_h100_fp8",
}
"""Identifiers of the rows of each table of llm-foundry, before their place."""


def training_checks() -> list[TableCheck]:
    """Predict tokens/s per GPU of published training runs."""
    figures = read_published("nvidia_h100.json")
    rows = (row for _, row in nvidia_runs(figures))
    nvidia = make_check("NVIDIA, h100-80gb fp8", rows, source=figures["source"])
    nvidia = replace(nvidia, rows=(*nvidia.rows, *bridge_rows()))
    return [*map(check_foundry, FOUNDRY_TABLES), nvidia, *run_checks()]


def check_foundry(table: str) -> TableCheck:
    """Predict the runs of one of ``FOUNDRY_TABLES``."""
    figures = read_published("llm_foundry.json")
    rows = (row for _, row in foundry_runs(figures, *table.split()))
    return make_check(f"llm-foundry, {table}", rows, source=figures["source"])


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
                identifier=f"{FOUNDRY_TABLES[table]}-{place}",
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
