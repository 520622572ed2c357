"""Longest sequences that a trainer is published to hold, and their predictions."""

from __future__ import annotations

from typing import Any

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.devices import DEVICES
from seqplan.costs.analytic.hardware import ClusterHardware
from seqplan.costs.analytic.memory import peak_bytes, usable_bytes
from seqplan.costs.analytic.validation.published import list_rows, read_published
from seqplan.costs.analytic.validation.table_check import TableCheck, ValidatedRow
from seqplan.costs.model_sizes import ModelSizes
from seqplan.plans.scheme import Scheme

HOST_BYTES = 1e12
"""Of each GPU: no row is limited by it here."""

LONGEST = 1 << 27
"""Most tokens that are tried."""

_ASSUMED = (
    "ZeRO 3, full recomputation, optimizer's states on the host, on one GPU parameters and "
    "gradients too; gradients of 2 bytes; stack eager"
)

_MISSING = """\
Bytes are counted, and no constant is set with these rows. The two longest of 70B take 48 and 54 GB
of the device's 80, as published: the host's memory limits them, which no row states. 8B on one H100
has fewer than half of the tokens of one H200, which has 1.76 times the memory."""


def longest_sequence_checks() -> list[TableCheck]:
    """Predict the tokens of one sequence that fill the memory of the devices."""
    figures = read_published("longest_sequences.json")
    rows = []
    for row in list_rows(figures):
        deployment = deployment_of_row(row, figures["models"])
        scheme = Scheme(ulysses=row["ulysses"])
        rows.append(
            ValidatedRow(
                group=row["model"],
                label=_describe(row),
                predicted=float(find_max_len(deployment, scheme)),
                published=float(row["max_len"]),
            )
        )
    return [
        TableCheck(
            name="longest sequences",
            what=f"tokens of one sequence on H100 and H200, 1 to 64 GPUs ({figures['source']})",
            unit="tokens",
            larger_is_better=True,
            rows=tuple(rows),
            missing=_MISSING,
            compete=False,
            assumed=_ASSUMED,
        )
    ]


def deployment_of_row(row: dict[str, Any], models: dict[str, Any]) -> Deployment:
    """Return the deployment of a published row."""
    nodes, of_node = max(1, row["gpus"] // 8), min(8, row["gpus"])
    return Deployment(
        cluster=ClusterHardware(DEVICES[row["hardware"]], nodes, of_node),
        sizes=ModelSizes.from_mapping(models[row["model"]]),
        zero=3,
        recompute="full",
        loss=row["loss"],
        gradient_bytes=2,
        stack="eager",
        offload_optimizer=True,
        offload_parameters=row["gpus"] == 1,
        offload_layers=float(row["offload_layers"]),
        tiled_mlp=row["tiled_mlp"],
        host_memory_bytes=HOST_BYTES,
    )


def find_max_len(deployment: Deployment, scheme: Scheme) -> int:
    """Find the most tokens of one sequence whose bytes the device holds; 0 if none."""
    usable = usable_bytes(deployment.cluster.hardware.memory_bytes)
    replicas = deployment.cluster.gpus // scheme.gpus
    fits, fails = 0, LONGEST
    while fails - fits > 1:
        tokens = (fits + fails) // 2
        if sum(peak_bytes(deployment, scheme, replicas, tokens).values()) <= usable:
            fits = tokens
        else:
            fails = tokens
    return fits


def _describe(row: dict[str, Any]) -> str:
    parts = [f"{row['hardware']}, {row['gpus']} GPUs, u{row['ulysses']}, loss {row['loss']}"]
    parts += ["tiled MLP"] if row["tiled_mlp"] else []
    parts += ["activations on the host"] if row["offload_layers"] else []
    return ", ".join(parts)
