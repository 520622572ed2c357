"""Published runs of models with experts, split by expert parallelism, and their predictions."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.devices import DEVICES
from seqplan.costs.analytic.estimate import Estimate, Load, estimate
from seqplan.costs.analytic.expert_parallel import ExpertParallelism
from seqplan.costs.analytic.hardware import ClusterHardware
from seqplan.costs.analytic.validation.published import list_rows, read_published
from seqplan.costs.analytic.validation.table_check import TableCheck, ValidatedRow, judges
from seqplan.costs.model_sizes import ModelSizes
from seqplan.plans.scheme import Scheme

HIDDEN_EXCHANGE = 0.75
"""Share of the exchanges that Megatron hides where its recipe runs them next to other
micro-batches: set with the rows of an even hash."""

_OLDER = "older releases and Kimi K2"

_MISSING = """\
GROUPED_GAIN, BIAS_BYTES, LAUNCHES and the dispatchers' rates were set with the newest rows of an
even hash (on H100 with those of all releases since 26.02.01).
Recipes are of one commit: those of older releases may have differed, and the same configuration
became up to 1.8 times as fast by software alone.
Kimi K2 is trained with Muon, whose products are not modeled."""


@cache
def _figures() -> Any:
    return read_published("expert_runs.json")


@cache
def list_expert_runs() -> list[dict[str, Any]]:
    """List the runs as mappings from the columns' names, with their source and its release."""
    figures = _figures()
    runs = list_rows(figures)
    for run in runs:
        run["source"] = figures["sources"][run["source"]]
        run["release"] = run["source"].split()[-1]
    return runs


def is_newest(run: dict[str, Any]) -> bool:
    """Return whether no newer release has such a run: of its model, device and number of bits.

    Not of Kimi K2, which is trained with an optimizer that is not modeled.
    """
    if run["model"] == "kimi-k2":
        return False
    similar = [other["release"] for other in list_expert_runs() if _kind(other) == _kind(run)]
    return bool(run["release"] == similar[0])


def _kind(run: dict[str, Any]) -> tuple[str, str, bool]:
    return run["model"].partition(" ")[0], run["hardware"], run["precision"] == "bf16"


def estimate_run(run: dict[str, Any]) -> Estimate:
    """Estimate an iteration of a run."""
    hardware = replace(DEVICES[run["hardware"]], attention_kernel="cudnn", inter_rails=8)
    # NVL72 runs use 64 of its 72 GPUs, or fewer.
    per_node = min(run["GPUs"], 64 if hardware.gpus_per_node == 72 else 8)
    deployment = Deployment(
        cluster=ClusterHardware(hardware, run["GPUs"] // per_node, per_node),
        sizes=ModelSizes.from_mapping(_figures()["models"][run["model"]]),
        precision=run["precision"],
        recompute_modules=tuple(filter(None, run["recomputed"].split("+"))),
        loss="fused",
        gradient_bytes=2,
        virtual_stages=run["virtual stages"],
        sync="hidden",
        tp_overlap=0.5,
        stack=run["stack"],
        experts=ExpertParallelism(
            degree=run["ep"],
            dispatcher=run["dispatcher"],
            overlap=HIDDEN_EXCHANGE * run["exchange hidden"],
        ),
    )
    load = Load(seq_len=run["tokens"], batch=run["sequences"], micro_batch=run["micro-batch"])
    return estimate(deployment, Scheme(tp=run["tp"], pp=run["pp"]), load)


def expert_checks() -> list[TableCheck]:
    """Predict the newest runs of each device, and all older ones."""
    rows: dict[str, list[ValidatedRow]] = {}
    misfits: dict[str, int] = {}
    for run in list_expert_runs():
        estimated, table = estimate_run(run), run["hardware"] if is_newest(run) else _OLDER
        rows.setdefault(table, []).append(_as_row(run, estimated, newest=table != _OLDER))
        misfits[table] = misfits.get(table, 0) + (not estimated.fits)
    names = sorted(rows, key=lambda name: (name == _OLDER, name))
    return [
        TableCheck(
            name=f"experts, {name}",
            what="training throughput with expert parallelism (NVIDIA-NeMo/Megatron-Bridge "
            "067f987d docs/performance-summary.md and its archive)",
            unit="tokens/s per GPU",
            larger_is_better=True,
            rows=tuple(rows[name]),
            missing=f"{misfits[name]} of {len(rows[name])} runs, all of which ran, are predicted "
            f"not to fit.\n{_MISSING}",
            compete=False,
            assumed=_figures()["assumed"],
        )
        for name in names
    ]


def check_odd_experts(tables: list[TableCheck]) -> TableCheck:
    """Collect the judging rows of all devices."""
    return TableCheck(
        name="megatron, experts, all devices",
        what="newest rows of an odd hash",
        unit="tokens/s per GPU",
        larger_is_better=True,
        rows=tuple(
            row
            for check in tables
            if check.name.startswith("experts, ")
            for row in check.rows
            if row.identifier and judges(row.identifier)
        ),
        compete=False,
    )


def _as_row(run: dict[str, Any], estimated: Estimate, *, newest: bool) -> ValidatedRow:
    """Write a run as a row; an older one neither sets nor judges anything."""
    return ValidatedRow(
        group=f"{run['model']} {run['tokens']:,}",
        label=f"experts {run['hardware']}, {run['precision']}, ep{run['ep']}, {run['GPUs']} GPUs, "
        f"{run['release']}",
        predicted=estimated.tokens_per_s / run["GPUs"],
        published=run["tokens/s per GPU"],
        identifier=run["id"] if newest else "",
        stack=run["stack"].partition("-")[0],
        source=run["source"],
    )
