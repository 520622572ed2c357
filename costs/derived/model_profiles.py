"""Profiles of a model on named devices, for who has measured none: every scheme derived."""

from __future__ import annotations

from itertools import product

from seqplan.costs.analytic.added_terms import load_cost_terms
from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.hardware import ClusterHardware
from seqplan.costs.analytic.memory import PARAMETER_BYTES
from seqplan.costs.analytic.stacks import DEFAULT_STACK
from seqplan.costs.derived.expected_error import describe_expected_error
from seqplan.costs.model_sizes import ModelShape, ModelSizes
from seqplan.costs.profile import Profile
from seqplan.costs.scheme_rules import scheme_problem
from seqplan.plans.recomputation import MODES
from seqplan.plans.scheme import Scheme

MOST_SHARES, MOST_RING, MOST_STAGES = 16, 8, 2
"""Of a scheme that is derived by default: ulysses·ring, ring and pp at most."""

OFFLOADING = ("elementwise+0.5", "elementwise+1")
"""Modes that are derived by default if there is host memory: others gain less from it."""

DEEP_STAGES, DEEP_FROM = 8, 0.25
"""pp at most, without context parallelism, of models whose parameters and gradients take more than
this share of the memory at tp 8 and pp 2. On llama3-70b such plans are 1.03 times as fast (``./run
bench memory``), and proposals take three times as long; smaller models gain nothing."""


def list_schemes(shape: ModelShape, cluster: ClusterHardware, *, zero: int = 1) -> list[Scheme]:
    """List the schemes of powers of two that the model and the cluster can run.

    tp · ulysses stays within a node; under ZeRO-3 tp = pp = 1.
    """
    sizes, most_stages = shape.sizes, MOST_STAGES
    if sizes is not None:
        resident = (PARAMETER_BYTES + 4) * sizes.parameters / (8 * MOST_STAGES)
        if resident > DEEP_FROM * cluster.hardware.memory_bytes:
            most_stages = DEEP_STAGES
    powers = [2**power for power in range(MOST_SHARES.bit_length())]
    layouts = product((1,), (1,)) if zero == 3 else product((1, 2, 4, 8), (1, 2, 4, 8))
    return [
        scheme
        for (tp, pp), ulysses, ring in product(layouts, powers, powers)
        if (scheme := Scheme(tp, pp, ulysses, ring)).sp <= MOST_SHARES
        and scheme.ring <= MOST_RING
        and scheme.pp <= (MOST_STAGES if scheme.sp > 1 else most_stages)
        and scheme.gpus <= cluster.gpus
        and scheme.tp * scheme.ulysses <= cluster.gpus_per_node
        and scheme_problem(scheme, shape) is None
    ]


def derive_model_profile(
    sizes: ModelSizes,
    cluster: ClusterHardware,
    *,
    name: str,
    zero: int = 1,
    loss: str = "chunked",
    stack: str = DEFAULT_STACK,
) -> Profile:
    """Derive a profile of every recomputation mode.

    Also of those that offload, if the hardware has host memory for it; with its cost terms. States
    its expected error against devices, if published runs on them show one.
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
    document = derive_profile(deployment, schemes, name=name, modes=modes)
    expected = describe_expected_error(cluster.hardware.name)
    if expected is not None:
        document["notes"] = [*document.get("notes", ()), expected]
    return Profile.from_document(document, name)
