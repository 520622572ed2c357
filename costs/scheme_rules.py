"""Which schemes a model can run at all, and which of a profile's schemes contradict the others."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from seqplan.costs.model_sizes import ModelShape
from seqplan.costs.profiled_scheme import ProfiledScheme
from seqplan.plans.scheme import Scheme

SPREAD = 2.0
"""How far a scheme's quadratic work may be from the profile's median before it is doubted."""


def scheme_problem(
    scheme: Scheme,
    shape: ModelShape,
    *,
    gpus_per_node: int | None = None,
    equal_stages: bool = True,
    expert_parallel: int = 1,
) -> str | None:
    """Why ``shape`` cannot run ``scheme``, or None when it can.

    tp and ulysses both split the attention heads; pp splits the layers; key/value heads are split
    with the heads or, if there are fewer of them, replicated whole. ``gpus_per_node``: reject
    groups of tp·ulysses that cross a node's border, as costs are of groups within a node or over
    whole ones; rings send to neighbors alone. ``equal_stages``: reject a pp that does not divide
    the layers, as a profile's memory is of equal ones. Heads of linear attention and of
    state-space layers are split likewise, and no ring passes their state on; tp also splits the
    groups of the latter. ``expert_parallel`` above 1 requires experts, a multiple of it. More ranks
    than a stage has may share them: those of several replicas then.
    """
    split = scheme.tp * scheme.ulysses
    if shape.heads is not None and shape.heads % split:
        return f"tp·ulysses = {split} does not divide the {shape.heads} attention heads"
    if shape.kv_heads is not None:
        if shape.kv_heads % scheme.tp and scheme.tp % shape.kv_heads:
            return f"tp = {scheme.tp} neither divides nor replicates {shape.kv_heads} KV heads"
        if shape.kv_heads % split and split % shape.kv_heads:
            return f"tp·ulysses = {split} neither divides nor replicates {shape.kv_heads} KV heads"
    if equal_stages and shape.layers % scheme.pp:
        return f"pp = {scheme.pp} does not divide the {shape.layers} layers"
    special = shape.architecture
    if special.linear_layers and scheme.ring > 1:
        return f"no ring passes on the state of {special.linear_layers} linear-attention layers"
    if special.linear_layers and special.linear_key_heads % split:
        return f"tp·ulysses = {split} does not divide the {special.linear_key_heads} linear heads"
    if special.state_layers:
        if scheme.ring > 1:
            return f"no ring passes on the state of {special.state_layers} state-space layers"
        if special.state_heads % split or special.state_groups % scheme.tp:
            return (
                f"tp = {scheme.tp} of tp·ulysses = {split} does not divide {special.state_groups} "
                f"groups of {special.state_heads} state-space heads"
            )
    if problem := expert_problem(expert_parallel, shape):
        return problem
    if gpus_per_node is None:
        return None
    for name, size in (("tp", scheme.tp), ("tp·ulysses", split)):
        if gpus_per_node % size and size % gpus_per_node:
            return (
                f"{name} = {size} neither divides nor is a multiple of {gpus_per_node} GPUs a node"
            )
    return None


def expert_problem(expert_parallel: int, shape: ModelShape) -> str | None:
    """Why experts cannot be split over ``expert_parallel`` ranks, or None when they can."""
    experts = shape.architecture.experts
    if expert_parallel > 1 and not experts:
        return f"expert_parallel = {expert_parallel} requires a model with experts"
    if expert_parallel > 1 and experts % expert_parallel:
        return f"expert_parallel = {expert_parallel} does not divide the {experts} experts"
    return None


def doubts(schemes: Iterable[ProfiledScheme]) -> dict[Scheme, str]:
    """Schemes whose quadratic coefficient is far from the others' of the same model.

    Attention's work does not depend on the scheme, so a·gpus is about equal over the schemes, with
    efficiency and bubbles apart (b is not compared: communication makes it differ). Flagged schemes
    are left out, as they have been explained already, and so are derived ones, of which the profile
    states the origin.
    """
    unflagged = [e for e in schemes if not e.flag and e.origin != "derived"]
    work = {entry.scheme: entry.latency.a * entry.scheme.gpus for entry in unflagged}
    if len(work) < 3:
        return {}
    middle = median(work.values())
    doubtful = {}
    for scheme, value in work.items():
        if value > SPREAD * middle or value * SPREAD < middle:
            doubtful[scheme] = (
                f"a·gpus is {value / middle:.2g} times the median of the profile's schemes; "
                "attention's work should hardly depend on the scheme. Used as published"
            )
    return doubtful
