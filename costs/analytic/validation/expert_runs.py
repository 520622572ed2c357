"""Published runs of models with experts, split by expert parallelism, and their predictions."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.estimate import Estimate, Load, estimate
from seqplan.costs.analytic.expert_parallel import ExpertParallelism
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.analytic.validation.published import list_rows, read_published
from seqplan.costs.analytic.validation.table_check import (
    TableCheck,
    ValidatedRow,
    judges,
    make_check,
)
from seqplan.costs.model_sizes import ModelSizes
from seqplan.plans.scheme import Scheme

HIDDEN_EXCHANGE = 0.75
"""Share of the exchanges that Megatron hides where its recipe runs them next to other
micro-batches: set with the rows of an even hash."""

_OLDER = "older releases and Kimi K2"

_BRIDGE = "bridge_experts"
"""Identifiers of Megatron-Bridge's runs, before their place: some of these set constants."""

_TRAINERS: dict[str, dict[str, Any]] = {
    _BRIDGE: {"loss": "fused", "tp_overlap": 0.5},
    "bridge_nemotron": {"loss": "fused", "tp_overlap": 0.5},
    "automodel": {"zero": 2},
    "dgxc": {"loss": "fused", "tp_overlap": 0.5},
}
"""What a trainer's runs have in common, by the identifiers' part before their place."""


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
        run["trainer"] = run["id"].rpartition("-")[0]
    return runs


def is_newest(run: dict[str, Any]) -> bool:
    """Return whether no newer release has such a run: of its model, device and number of bits.

    Not of Kimi K2, which is trained with an optimizer that is not modeled.
    """
    if run["model"] == "kimi-k2" or run["trainer"] != _BRIDGE:
        return False
    similar = [other["release"] for other in list_expert_runs() if _kind(other) == _kind(run)]
    return bool(run["release"] == similar[0])


def _kind(run: dict[str, Any]) -> tuple[str, str, str, bool]:
    model = run["model"].partition(" ")[0]
    return run["trainer"], model, run["hardware"], run["precision"] == "bf16"


def estimate_run(run: dict[str, Any]) -> Estimate:
    """Estimate an iteration of a run."""
    hardware = replace(DEVICES[run["hardware"]], attention_kernel="cudnn", inter_rails=8)
    per_node = min(run["GPUs"], hardware.gpus_per_node)
    whole = run["recomputed"] == "full"
    modules = () if whole else tuple(filter(None, run["recomputed"].split("+")))
    deployment = Deployment(
        cluster=ClusterHardware(hardware, run["GPUs"] // per_node, per_node),
        sizes=ModelSizes.from_mapping(_figures()["models"][run["model"]]),
        precision=run["precision"],
        recompute="full" if whole else "none",
        recompute_modules=modules,
        gradient_bytes=2,
        virtual_stages=run["virtual stages"],
        sync="hidden",
        stack=run["stack"],
        **_TRAINERS[run["trainer"]],
        experts=ExpertParallelism(
            degree=run["ep"],
            dispatcher=run["dispatcher"],
            overlap=HIDDEN_EXCHANGE * run["exchange hidden"],
        ),
    )
    load = Load(seq_len=run["tokens"], batch=run["sequences"], micro_batch=run["micro-batch"])
    scheme = Scheme(tp=run["tp"], pp=run["pp"], ring=run["ring"])
    return estimate(deployment, scheme, load)


def expert_checks() -> list[TableCheck]:
    """Predict Megatron-Bridge's newest runs of each device, its older ones, and other runs."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in list_expert_runs():
        table = run["hardware"] if is_newest(run) else _OLDER
        key = (run["trainer"], table if run["trainer"] == _BRIDGE else "")
        runs.setdefault(key, []).append(run)
    order = list(_TRAINERS)
    keys = sorted(runs, key=lambda key: (order.index(key[0]), key[1] == _OLDER, key[1]))
    return [_check(trainer, table, runs[trainer, table]) for trainer, table in keys]


def _check(trainer: str, table: str, runs: list[dict[str, Any]]) -> TableCheck:
    estimates = [estimate_run(run) for run in runs]
    misfits = sum(not estimated.fits for estimated in estimates)
    return make_check(
        "experts" if trainer == _BRIDGE else trainer,
        map(_as_row, runs, estimates),
        kind=table,
        misfits=f"{misfits} of {len(runs)} runs, all of which ran, are predicted not to fit.",
        assumed=_figures()["assumed"][trainer],
    )


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


def _as_row(run: dict[str, Any], estimated: Estimate) -> ValidatedRow:
    """Write a run as a row; one that is not among the newest neither sets nor judges anything."""
    return ValidatedRow(
        group=f"{run['model']} {run['tokens']:,}",
        label=f"experts {run['hardware']}, {run['precision']}, ep{run['ep']}, {run['GPUs']} GPUs"
        + (f", {run['release']}" if run["trainer"].startswith("bridge") else ""),
        predicted=estimated.tokens_per_s / run["GPUs"],
        published=run["tokens/s per GPU"],
        identifier=run["id"] if is_newest(run) else "",
        stack=run["stack"].partition("-")[0],
        source=run["source"],
    )
