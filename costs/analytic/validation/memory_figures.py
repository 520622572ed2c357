"""Memory that a trainer is published to use, and its predictions."""

from __future__ import annotations

from typing import Any

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.analytic.memory import peak_bytes, verdict
from seqplan.costs.analytic.validation.published import list_rows, read_published
from seqplan.costs.analytic.validation.table_check import TableCheck, ValidatedRow, make_check
from seqplan.costs.model_sizes import ModelSizes
from seqplan.plans.scheme import Scheme

DEVICE, TOKENS, OF_NODE = "a800-80gb", 2048, 8


def memory_checks() -> list[TableCheck]:
    """Predict the memory of the fullest GPU."""
    figures = read_published("memory_figures.json")
    rows = []
    for row in list_rows(figures):
        scheme = Scheme(tp=row["tp"], pp=row["pp"])
        deployment = _deploy(figures["models"][row["model"]], DEVICE, row, "full")
        rows.append(
            ValidatedRow(
                group=row["model"],
                label=f"{row['gpus']} GPUs, {scheme}, ZeRO {row['zero']}",
                predicted=_count_bytes(deployment, scheme, TOKENS) / 1e9,
                published=float(row["memory_gb"]),
            )
        )
    verdicts = list_verdicts()
    right = sum(predicted == published for _, predicted, published in verdicts)
    return [
        make_check("memory", rows, source=figures["source"], verdicts=len(verdicts), right=right)
    ]


def list_verdicts() -> list[tuple[str, bool, bool]]:
    """List runs that users reported: source, whether predicted to fit, and whether one did."""
    figures = read_published("memory_figures.json")
    verdicts = []
    for row in list_rows(figures, "verdicts", "verdict columns"):
        sizes = figures["models"][row["model"]]
        deployment = _deploy(sizes, row["hardware"], row, row["recomputation"])
        needed = _count_bytes(deployment, Scheme(), row["tokens"])
        fits = verdict(needed, deployment.cluster.hardware.memory_bytes) != "does not fit"
        verdicts.append((row["source"], fits, row["fits"]))
    return verdicts


def _deploy(
    sizes: dict[str, int], device: str, row: dict[str, Any], recomputation: str
) -> Deployment:
    of_node = min(OF_NODE, row["gpus"])
    return Deployment(
        cluster=ClusterHardware(DEVICES[device], row["gpus"] // of_node, of_node),
        sizes=ModelSizes.from_mapping(sizes),
        zero=row["zero"],
        recompute=recomputation,
        stack="eager",
    )


def _count_bytes(deployment: Deployment, scheme: Scheme, tokens: int) -> float:
    replicas = deployment.cluster.gpus // scheme.gpus
    return sum(peak_bytes(deployment, scheme, replicas, tokens).values())
