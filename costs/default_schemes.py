"""Schemes that are derived by default: degrees in powers of two, as far as they pay."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from math import inf

from seqplan.costs.model_sizes import ModelShape
from seqplan.costs.profile import Profile
from seqplan.costs.scheme_rules import scheme_problem
from seqplan.plans.scheme import Scheme

MOST_SHARES, MOST_RING = 16, 8
"""ulysses·ring and ring at most."""

MOST_NODES, CLUSTER_SHARE = 64, 4
"""ring at most if tp·ulysses fills a node, and the part of the cluster's nodes that it may take.
Without, the longest sequence sets the steps of large clusters (``./run bench long_rings``)."""

MOST_STAGES = 2
"""pp at most, unless the model is deep."""

DEEP_STAGES, DEEP_CONTEXT_STAGES, DEEP_FROM = 8, 4, 0.25
"""pp at most, without context parallelism and, if there are no experts, with it; of deep models:
bf16 parameters and fp32 gradients take more than this share of the memory at tp 8 and pp 2.
On llama3-70b such plans are 1.03 times as fast (``./run bench memory``), and proposals take three
times as long; smaller models gain nothing. Static runs of llama3-70b with pp 4 and context
parallelism take up to 4 % less than with pp 2."""

DEGREES = (1, 2, 4, 8)
"""tp and pp."""

LAYOUTS = tuple(product(DEGREES, DEGREES))
"""Pairs of tp and pp."""


def list_default_schemes(
    shape: ModelShape,
    gpus: int,
    gpus_per_node: int,
    *,
    memory_bytes: float = inf,
    layouts: Iterable[tuple[int, int]] = LAYOUTS,
) -> list[Scheme]:
    """List the schemes of ``layouts`` that are usual and that the model can run.

    ``layouts``: pairs of tp and pp. ``memory_bytes``: of one GPU; without, no model is deep.
    Degrees of ulysses may reach over nodes; ring, over many nodes, follows tp·ulysses that fill
    one.
    """
    most_stages = with_context = MOST_STAGES
    if shape.sizes is not None and 6 * shape.sizes.parameters / (8 * MOST_STAGES) > (
        DEEP_FROM * memory_bytes
    ):
        most_stages = DEEP_STAGES
        with_context = MOST_STAGES if shape.architecture.experts else DEEP_CONTEXT_STAGES
    powers = [2**power for power in range(MOST_NODES.bit_length())]
    most_nodes = min(MOST_NODES, gpus // gpus_per_node // CLUSTER_SHARE)
    schemes = [
        Scheme(tp, pp, ulysses, ring)
        for (tp, pp), ulysses, ring in product(layouts, powers, powers)
        if tp * pp * ulysses * ring <= gpus
    ]
    return [
        scheme
        for scheme in schemes
        if scheme.pp <= (most_stages if scheme.sp == 1 else with_context)
        and (
            (scheme.sp <= MOST_SHARES and scheme.ring <= MOST_RING)
            or (scheme.tp * scheme.ulysses == gpus_per_node and scheme.ring <= most_nodes)
        )
        and scheme_problem(scheme, shape, gpus_per_node=gpus_per_node) is None
    ]


def find_longest_ring(profile: Profile, gpus: int) -> int:
    """Find the longest ring that is derived by default, in layouts of the profile."""
    layouts = {(scheme.tp, scheme.pp) for scheme in profile.by_scheme}
    schemes = list_default_schemes(profile.shape, gpus, profile.gpus_per_node, layouts=layouts)
    return max((scheme.ring for scheme in schemes), default=1)
