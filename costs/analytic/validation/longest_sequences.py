"""Longest sequences that a trainer is published to hold, and their predictions."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.analytic.memory import count_host_bytes, peak_bytes, usable_bytes
from seqplan.costs.analytic.validation.published import list_rows, read_published
from seqplan.costs.analytic.validation.table_check import TableCheck, ValidatedRow, make_check
from seqplan.costs.model_sizes import ModelSizes
from seqplan.plans.scheme import Scheme

HOST_BYTES = 1.9e12
"""Of a node, as the source states it for H100. It limits no row on H200."""

HOST_STATES, HOST_PARAMETERS, HOST_BUFFERS = 16, 2, 1.5
"""Bytes a parameter on the host: fp32 master copy, moments and gradient, and parameters if they are
offloaded; times what DeepSpeed adds for buffers (its estimate_zero3_model_states_mem_needs)."""

LONGEST = 1 << 27
"""Most tokens that are tried."""


def longest_sequence_checks() -> list[TableCheck]:
    """Predict the tokens of one sequence that fill the memory of the devices."""
    figures = read_published("longest_sequences.json")
    rows = []
    for row in list_rows(figures):
        limits = find_limits(row, figures["models"])
        limit = min(limits, key=lambda name: limits[name])
        rows.append(
            ValidatedRow(
                group=row["model"],
                label=f"{_describe(row)}: {limit}",
                predicted=limits[limit],
                published=float(row["max_len"]),
            )
        )
    return [make_check("longest-sequences", rows, source=figures["source"])]


def deployment_of_row(row: dict[str, Any], models: dict[str, Any]) -> Deployment:
    """Return the deployment of a published row."""
    nodes, of_node = max(1, row["gpus"] // 8), min(8, row["gpus"])
    return Deployment(
        cluster=ClusterHardware(
            replace(DEVICES[row["hardware"]], attention_kernel=row["attention"]), nodes, of_node
        ),
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


def find_limits(row: dict[str, Any], models: dict[str, Any]) -> dict[str, float]:
    """Find the most tokens of one sequence that each limit of a row allows."""
    deployment, scheme = deployment_of_row(row, models), Scheme(ulysses=row["ulysses"])
    sizes, nodes = deployment.sizes, deployment.cluster.nodes
    states = HOST_STATES + (HOST_PARAMETERS if deployment.offload_parameters else 0)
    free = nodes * HOST_BYTES - HOST_BUFFERS * states * sizes.parameters
    of_token = count_host_bytes(deployment, 1) * deployment.cluster.gpus / scheme.gpus
    widest = max(sizes.hidden, sizes.attention_width)
    return {
        "device": float(find_max_len(deployment, scheme)),
        "host": free / of_token if of_token else inf,
        "indices": 2**31 / widest * scheme.sp if row["index_bits"] == 32 else inf,
    }


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
