"""Options under which a load fits into memory that does not as it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.estimate import Estimate, Load, estimate, problem
from seqplan.costs.analytic.memory import VERDICTS
from seqplan.plans.scheme import Scheme

Changes = dict[str, int | str]
"""Values of options by their names."""

MOST_NODES = 1024
"""Nodes up to which more of them are tried."""


@dataclass(frozen=True)
class FittingOptions:
    """Options that differ from those given, by name, and the estimate with them."""

    changed: Changes
    estimated: Estimate


def find_fitting(
    deployment: Deployment, scheme: Scheme, load: Load, *, any_batch: bool = False
) -> FittingOptions | None:
    """Find the fewest options that make a load fit, of equally many the fastest.

    Full recomputation, higher ZeRO stages and degrees of tp, ulysses and ring are tried on the
    cluster, then on one of twice as many nodes, and so on. Tight ones count if none fit on any;
    None if no options do. ``scheme``: the one that needs least; ``any_batch``: the batch is the
    fewest sequences that a scheme can run, not the load's.
    """
    nodes, tight = deployment.cluster.nodes, None
    while nodes <= max(MOST_NODES, deployment.cluster.nodes):
        cluster = replace(deployment.cluster, nodes=nodes)
        options = _list_fitting(replace(deployment, cluster=cluster), scheme, load, any_batch)
        if best := min(options, key=_rank, default=None):
            more: Changes = {"nodes": nodes} if nodes > deployment.cluster.nodes else {}
            on_nodes = replace(best, changed=more | best.changed)
            if best.estimated.verdict == VERDICTS[0]:
                return on_nodes
            tight = tight or on_nodes
        nodes *= 2
    return tight


def _rank(options: FittingOptions) -> tuple[int, int, float]:
    estimated = options.estimated
    return VERDICTS.index(estimated.verdict), len(options.changed), estimated.iteration_ms


def _list_fitting(
    deployment: Deployment, scheme: Scheme, load: Load, any_batch: bool
) -> Iterator[FittingOptions]:
    """Yield the options that fit on the deployment's cluster."""
    cluster = deployment.cluster
    degrees = [
        _list_degrees(scheme.tp, cluster.gpus_per_node),
        _list_degrees(scheme.ulysses, cluster.gpus_per_node),
        _list_degrees(scheme.ring, cluster.gpus),
    ]
    for changed, chosen in _list_deployments(deployment):
        for tp, ulysses, ring in product(*degrees):
            tried = Scheme(tp, scheme.pp, ulysses, ring)
            if cluster.gpus % tried.gpus:
                continue
            batch = load.batch
            if any_batch:
                batch = load.micro_batch * cluster.gpus // tried.gpus
            of_scheme = replace(load, batch=batch)
            if problem(chosen, tried, of_scheme) is not None:
                continue
            estimated = estimate(chosen, tried, of_scheme)
            if estimated.fits:
                axes: Changes = {
                    name: degree
                    for name, degree in tried.as_dict().items()
                    if degree != scheme.as_dict()[name]
                }
                yield FittingOptions(axes | changed, estimated)


def _list_degrees(least: int, most: int) -> list[int]:
    """List the degree and its doubles up to ``most``."""
    return [least, *(d for k in range(1, 17) if (d := least << k) <= most)]


def _list_deployments(deployment: Deployment) -> Iterator[tuple[Changes, Deployment]]:
    """Yield the deployment, and those of higher ZeRO stages and full recomputation."""
    recomputed: list[tuple[Changes, Deployment]] = [({}, deployment)]
    if deployment.recompute != "full":
        full = replace(deployment, recompute="full", recompute_modules=(), offload_layers=0.0)
        recomputed.append(({"recompute": "full"}, full))
    for changed, chosen in recomputed:
        for zero in range(deployment.zero, 4):
            if zero == 3 and deployment.sync == "hidden":
                continue
            stage: Changes = {"zero": zero} if zero > deployment.zero else {}
            yield changed | stage, replace(chosen, zero=zero)
