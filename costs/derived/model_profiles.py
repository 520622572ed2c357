"""Profiles of a model on named devices, for who has measured none: every scheme derived."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.costs.analytic.added_terms import load_cost_terms
from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.analytic.stacks import DEFAULT_STACK
from seqplan.costs.default_schemes import LAYOUTS, list_default_schemes
from seqplan.costs.derived.expected_error import add_expected_error
from seqplan.costs.model_sizes import ModelShape, ModelSizes
from seqplan.costs.profile import Profile
from seqplan.costs.scheme_rules import expert_problem
from seqplan.plans.recomputation import MODES
from seqplan.plans.scheme import Scheme

OFFLOADING = ("elementwise+0.5", "elementwise+1")
"""Modes that are derived by default if there is host memory: others gain less from it."""

MOST_BLOCK, MOST_DEGREES = 256, 3
"""Ranks of a block that holds all experts, and degrees of expert parallelism, at most."""


def list_schemes(shape: ModelShape, cluster: ClusterHardware, *, zero: int = 1) -> list[Scheme]:
    """List the schemes of powers of two that the model and the cluster can run.

    tp · ulysses stays within a node; under ZeRO-3 tp = pp = 1.
    """
    schemes = list_default_schemes(
        shape,
        cluster.gpus,
        cluster.gpus_per_node,
        memory_bytes=cluster.hardware.memory_bytes,
        layouts=[(1, 1)] if zero == 3 else LAYOUTS,
    )
    return [s for s in schemes if s.tp * s.ulysses <= cluster.gpus_per_node]


def list_expert_degrees(shape: ModelShape, cluster: ClusterHardware) -> list[int]:
    """List degrees of expert parallelism that the model and the cluster can run.

    1, and powers of two from a node's GPUs up to ``MOST_BLOCK``; 1 alone for a dense model.
    """
    powers = [2**power for power in range(MOST_BLOCK.bit_length())]
    return [1] + [
        degree
        for degree in powers
        if degree >= max(2, cluster.gpus_per_node)
        and cluster.gpus % degree == 0
        and expert_problem(degree, shape) is None
    ]


def derive_model_profile(
    sizes: ModelSizes,
    cluster: ClusterHardware,
    *,
    name: str,
    zero: int = 1,
    loss: str = "chunked",
    stack: str = DEFAULT_STACK,
    longest: int | None = None,
) -> Profile:
    """Derive a profile of every recomputation mode.

    Also of those that offload, if the hardware has host memory for it; with its cost terms. States
    its expected error against devices, if published runs on them show one. ``longest``: with the
    degrees of expert parallelism that hold so many tokens, ``MOST_DEGREES`` of them at most, the
    smallest first; by default experts are not split.
    """
    deployment = Deployment(
        cluster=cluster,
        sizes=sizes,
        zero=zero,
        loss=loss,
        stack=stack,
        host_memory_bytes=cluster.hardware.host_memory_bytes,
        added_terms=load_cost_terms(cluster.hardware.cost_terms),
    )
    schemes = list_schemes(sizes.shape, cluster, zero=zero)
    modes = (*MODES, *OFFLOADING) if deployment.host_memory_bytes else MODES
    degrees = _keep_degrees(deployment, schemes, longest)
    document = derive_profile(deployment, schemes, name=name, modes=modes, expert_degrees=degrees)
    return Profile.from_document(add_expected_error(document, deployment, degrees), name)


def _keep_degrees(
    deployment: Deployment, schemes: Sequence[Scheme], longest: int | None
) -> Sequence[int]:
    """Return the smallest degrees of expert parallelism that hold ``longest`` tokens; else 1."""
    cluster = deployment.cluster
    degrees = list_expert_degrees(deployment.sizes.shape, cluster)
    if longest is None or degrees == [1]:
        return [1]
    document = derive_profile(
        deployment, schemes, name="memory", modes=(MODES[-1],), expert_degrees=degrees
    )
    profile = Profile.from_document(document, "memory")
    held = [
        degree
        for degree in degrees
        if any(
            model.max_sequence >= longest
            for model in profile.at_expert_parallel(degree).usable(cluster.gpus, longest)
        )
    ]
    return held[:MOST_DEGREES] or [1]
