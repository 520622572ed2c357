"""Profiles by the analytic model: of a model nobody measured, or of schemes nobody measured."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from itertools import product
from typing import Any

from seqplan.api.cli.framework.model_options import cluster_of, deployment_of, parse_sizes
from seqplan.costs.analytic.hardware import ClusterHardware
from seqplan.costs.model_sizes import ModelShape
from seqplan.costs.profile import Profile
from seqplan.costs.scheme_rules import scheme_problem
from seqplan.costs.shipped.catalogue import find_profile
from seqplan.plans.format.atomic_file import atomic_write
from seqplan.plans.scheme import Scheme


def derive_every_scheme(args: argparse.Namespace) -> dict[str, Any]:
    """``--estimate``: every scheme derived. ``ValueError`` for what cannot be."""
    from seqplan.costs.analytic.derive import derive_profile

    cluster = _cluster(args, "--estimate")
    deployment = deployment_of(args)
    name = args.name or f"{args.model or 'model'}-{args.hardware}-estimate"
    schemes = _schemes(args, deployment.sizes.shape, cluster, zero=args.zero)
    return derive_profile(deployment, schemes, name=name)


def complete_from_profile(args: argparse.Namespace) -> dict[str, Any]:
    """``--complete``: a measured profile with the schemes that it lacks, all derived."""
    from seqplan.costs.analytic.complete import complete

    profile = find_profile(args.complete)
    cluster = _cluster(args, "--complete")
    layouts = {(entry.scheme.tp, entry.scheme.pp) for entry in profile.schemes}
    if args.schemes is not None or layouts == {(1, 1)}:
        schemes = _schemes(args, profile.shape, cluster, zero=profile.zero_stage)
    else:
        schemes = _beside(sorted(layouts), profile.shape, cluster)
    print(
        f"measured on {profile.hardware}, links and rates of {args.hardware}: the same devices?",
        file=sys.stderr,
    )
    return complete(profile, cluster, schemes, sizes=parse_sizes(args))


def write_derived(args: argparse.Namespace, document: dict[str, Any]) -> None:
    """Check and write the profile, and print its schemes."""
    profile = Profile.from_document(document, str(args.output))
    with atomic_write(args.output, "w") as file:
        file.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    if args.json:
        print(json.dumps(document, ensure_ascii=False))
        return
    derived = sum(entry.origin == "derived" for entry in profile.schemes)
    print(
        f"{args.output}: profile {profile.name}, {len(profile.schemes)} schemes, {derived} derived"
    )
    print(f"fit: {profile.residuals}")
    for note in document.get("notes", ()):
        print("\n".join(textwrap.wrap(f"note: {note}", 98)))
    print(f"see it with: seqplan profiles {args.output} --gpus N")


def _cluster(args: argparse.Namespace, option: str) -> ClusterHardware:
    if args.hardware is None:
        raise ValueError(f"{option} wants --hardware, whose links and rates it derives from")
    return cluster_of(args)


def _schemes(
    args: argparse.Namespace, shape: ModelShape, cluster: ClusterHardware, *, zero: int
) -> list[Scheme]:
    """Those of ``--schemes``, or all powers of two: tp × pp, and Ulysses × ring with tp = 1."""
    if args.schemes is not None:
        return [Scheme.parse(text) for text in args.schemes.split(",")]
    powers = [2**power for power in range(cluster.gpus.bit_length())]
    schemes = [Scheme(1, 1, ulysses, ring) for ulysses, ring in product(powers, powers)]
    if zero < 3:
        schemes += [Scheme(tp, pp) for tp, pp in product(powers, powers)]
    return sorted(
        {
            scheme
            for scheme in schemes
            if scheme.gpus <= cluster.gpus
            and scheme_problem(scheme, shape, gpus_per_node=cluster.gpus_per_node) is None
        }
    )


MOST_STAGES, MOST_RING, MOST_SHARES, MOST_GPUS = 2, 8, 16, 64
"""Of a scheme that is derived unasked: pp, ring, ulysses·ring and GPUs."""


def _beside(
    layouts: Sequence[tuple[int, int]], shape: ModelShape, cluster: ClusterHardware
) -> list[Scheme]:
    """Combine Ulysses × ring with each measured layout of few stages and with tp1."""
    powers = [2**power for power in range(MOST_SHARES.bit_length())]
    schemes = [
        Scheme(tp, pp, ulysses, ring)
        for tp, pp in sorted({(1, 1), *layouts})
        if pp <= MOST_STAGES
        for ulysses, ring in product(powers, powers)
        if ulysses <= cluster.gpus_per_node
        and ring <= MOST_RING
        and (ulysses * ring > 1 or (tp, pp) == (1, 1))
    ]
    return [
        scheme
        for scheme in schemes
        if scheme.sp <= MOST_SHARES
        and scheme.gpus <= min(cluster.gpus, MOST_GPUS)
        and scheme_problem(scheme, shape) is None
    ]
