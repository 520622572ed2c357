"""Published training runs, a row each, and their predictions by the stack of their trainer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.estimate import Load, estimate
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware, Hardware
from seqplan.costs.analytic.validation.published import list_rows, read_published
from seqplan.costs.analytic.validation.table_check import TableCheck, ValidatedRow, make_check
from seqplan.costs.model_sizes import ModelSizes
from seqplan.plans.scheme import Scheme

ROCE_RANK_US = 5.0
"""What a further rank of a collective adds over RoCE: assumed, published values are 3 to 10."""

_TABLES = {
    "NVIDIA, h100-80gb bf16": (("dgxc",), "h100-80gb"),
    "NVIDIA, Blackwell": (("dgxc", "megatron_bridge"), "b"),
    "InternEvo, a100-80gb bf16": (("internevo",), "a100-80gb"),
    "torchtitan, a100-80gb bf16": (("memory",), "a100-80gb"),
}
"""Prefixes of the identifiers of each table's runs, and of their hardware."""


@cache
def _figures() -> Any:
    return read_published("published_runs.json")


def list_runs() -> list[dict[str, Any]]:
    """List the runs as mappings from the columns' names, the source by its text."""
    figures = _figures()
    return [{**run, "source": figures["sources"][run["source"]]} for run in list_rows(figures)]


def predict_run(run: dict[str, Any], *, products: float | None = None) -> ValidatedRow:
    """Predict tokens/s per GPU of a run; ``products``: another rate of the stack's products."""
    deployment = deployment_of(run)
    if products is not None:
        efficiency = deployment.cluster.hardware.matmul_efficiency * products
        hardware = replace(
            deployment.cluster.hardware, matmul_efficiency=efficiency / deployment.product_gain
        )
        deployment = replace(deployment, cluster=replace(deployment.cluster, hardware=hardware))
    predicted = estimate(deployment, *load_of(run)).tokens_per_s / run["GPUs"]
    return ValidatedRow(
        group=f"{run['model']} {run['tokens']:,}",
        label=f"{run['hardware']} {run['precision']}, {run['GPUs']} GPUs",
        predicted=predicted,
        published=run["tokens/s per GPU"],
        identifier=run["id"],
        stack=run["stack"],
        source=run["source"],
    )


def load_of(run: dict[str, Any]) -> tuple[Scheme, Load]:
    """Return the scheme and the load of a run."""
    scheme = Scheme(tp=run["tp"], pp=run["pp"], ring=run["ring"])
    load = Load(seq_len=run["tokens"], batch=run["sequences"], micro_batch=run["micro-batch"])
    return scheme, load


def run_checks() -> list[TableCheck]:
    """Predict the tables of runs."""
    return [
        make_check(name, rows, sources="; ".join(sorted({row.source for row in rows})))
        for name, selected in _TABLES.items()
        for rows in [[predict_run(run) for run in _select(*selected)]]
    ]


def bridge_rows() -> tuple[ValidatedRow, ...]:
    """Predict the runs on H100 that NVIDIA has added to its fp8 table since 2025."""
    return tuple(predict_run(run) for run in _select(("megatron_bridge",), "h100-80gb"))


def _select(prefixes: tuple[str, ...], hardware: str) -> Iterator[dict[str, Any]]:
    for run in list_runs():
        kind = run["hardware"].removeprefix("g")
        if run["id"].rpartition("-")[0] in prefixes and kind.startswith(hardware):
            yield run


def deployment_of(run: dict[str, Any]) -> Deployment:
    """Return the cluster, model and settings of a run."""
    internevo, nvidia = run["id"].startswith("internevo"), run["stack"] == "megatron"
    hardware: Hardware = DEVICES[run["hardware"]]
    if internevo:
        hardware = replace(hardware, inter_gb_s=6.25, inter_rank_us=ROCE_RANK_US)
    if nvidia:
        hardware = replace(hardware, attention_kernel="cudnn", inter_rails=8)
    per_node = min(run["GPUs"], hardware.gpus_per_node)
    return Deployment(
        cluster=ClusterHardware(hardware, run["GPUs"] // per_node, per_node),
        sizes=_sizes_of(run["model"]),
        zero=run["zero"],
        recompute=run["recomputation"],
        precision=run["precision"],
        virtual_stages=run["virtual stages"],
        sync="hidden",
        tp_overlap=0.5 if nvidia else 0.0,
        stack=run["stack"],
        optimizer_shards=8 if internevo else 0,
    )


@cache
def _sizes_of(model: str) -> ModelSizes:
    figures = _figures()
    values = figures["models"][model]
    count = len(figures["sizes"])
    sizes = dict(zip(figures["sizes"], values[:count], strict=True))
    return ModelSizes.from_mapping({**sizes, **(values[count] if len(values) > count else {})})
