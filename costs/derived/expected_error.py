"""The error that published training runs let one expect of a derived profile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.validation.expert_runs import check_odd_experts, expert_checks
from seqplan.costs.analytic.validation.training_tables import FOUNDRY_TABLES, check_foundry
from seqplan.plans.percent import percent


@cache
def describe_expected_error(device: str) -> str | None:
    """Describe how far published runs on a device are from their predictions; None without runs."""
    table = f"{device} bf16"
    if table not in FOUNDRY_TABLES:
        return None
    check = check_foundry(table)
    return (
        f"expected error: {percent(check.median_error, 0)} (median) and "
        f"{percent(check.p90_error, 0)} (p90), as of "
        f"{len(check.rows)} published training runs on {device.partition('-')[0].upper()} in bf16 "
        f"({check.name}; seqplan profile validate), none of them with sequence parallelism between "
        "nodes; more where something here is unchecked"
    )


@cache
def describe_expert_error() -> str:
    """Describe how far published runs with expert parallelism are from their predictions."""
    check = check_odd_experts(expert_checks())
    return (
        f"expected error: {percent(check.median_error, 0)} (median) and "
        f"{percent(check.p90_error, 0)} (p90), as of "
        f"{len(check.rows)} published training runs with expert parallelism by Megatron, which "
        "have set no constant (seqplan profile validate); more where something here is unchecked"
    )


def add_expected_error(
    document: dict[str, Any], deployment: Deployment, degrees: Sequence[int]
) -> dict[str, Any]:
    """Add the expected error to a derived profile's notes, if published runs show one."""
    expected = None
    if max(degrees) > 1:
        expected = describe_expert_error()
    elif deployment.precision == "bf16":
        expected = describe_expected_error(deployment.cluster.hardware.name)
    if expected is None:
        return document
    return {**document, "notes": [*document.get("notes", ()), expected]}
