"""Profiles of a model on named devices, for who has measured none: every scheme derived."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from seqplan.costs.analytic.added_terms import load_cost_terms
from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.analytic.memory import PARAMETER_BYTES
from seqplan.costs.analytic.stacks import DEFAULT_STACK
from seqplan.costs.derived.expected_error import add_expected_error
from seqplan.costs.model_sizes import ModelShape, ModelSizes
from seqplan.costs.profile import Profile
from seqplan.costs.scheme_rules import expert_problem, list_usual_context, scheme_problem
from seqplan.plans.recomputation import MODES
from seqplan.plans.scheme import Scheme

MOST_STAGES = 2
"""pp at most, of a scheme that is derived by default."""

OFFLOADING = ("elementwise+0.5", "elementwise+1")
"""Modes that are derived by default if there is host memory: others gain less from it."""

DEEP_STAGES, DEEP_CONTEXT_STAGES, DEEP_FROM = 8, 4, 0.25
"""pp at most, without context parallelism and, if there are no experts, with it; of models whose
parameters and gradients take more than this share of the memory at tp 8 and pp 2. On llama3-70b
such plans are 1.03 times as fast (``./run bench memory``), and proposals take three times as long;
smaller models gain nothing. Static runs of llama3-70b with pp 4 and context parallelism take up to
4 % less than with pp 2."""


MOST_BLOCK, MOST_DEGREES = 256, 3
"""Ranks of a block that holds all experts, and degrees of expert parallelism, at most."""


def list_schemes(shape: ModelShape, cluster: ClusterHardware, *, zero: int = 1) -> list[Scheme]:
    """List the schemes of powers of two that the model and the cluster can run.

    tp · ulysses stays within a node; under ZeRO-3 tp = pp = 1.
    """
    sizes, most_stages = shape.sizes, MOST_STAGES
    if sizes is not None:
        resident = (PARAMETER_BYTES + 4) * sizes.parameters / (8 * MOST_STAGES)
        if resident > DEEP_FROM * cluster.hardware.memory_bytes:
            most_stages = DEEP_STAGES
    with_context = MOST_STAGES if shape.architecture.experts else DEEP_CONTEXT_STAGES
    layouts = product((1,), (1,)) if zero == 3 else product((1, 2, 4, 8), (1, 2, 4, 8))
    return [
        scheme
        for tp, pp in layouts
        for scheme in list_usual_context(tp, pp, cluster.gpus, cluster.gpus_per_node)
        if scheme.pp <= (min(most_stages, with_context) if scheme.sp > 1 else most_stages)
        and scheme.tp * scheme.ulysses <= cluster.gpus_per_node
        and scheme_problem(scheme, shape) is None
    ]


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
