"""``seqplan profile derive``: a profile by the analytic model, nothing measured."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from seqplan.api.cli.framework import model_options
from seqplan.api.cli.framework.options import add_option
from seqplan.api.cli.framework.output import check_output, count_of, write_profile
from seqplan.costs.analytic.complete import complete
from seqplan.costs.analytic.deployment import LOSSES
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.gpus.hardware import ClusterHardware, Hardware
from seqplan.costs.analytic.gpus.profiled_device import hardware_of
from seqplan.costs.default_schemes import list_default_schemes
from seqplan.costs.derived.expected_error import add_expected_error
from seqplan.costs.derived.model_profiles import OFFLOADING, list_schemes
from seqplan.costs.model_files.description_file import SUFFIXES
from seqplan.costs.model_sizes import ModelShape
from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import find_profile
from seqplan.plans.percent import wrap_text
from seqplan.plans.recomputation import MODES
from seqplan.plans.scheme import Scheme

DESCRIPTION = """\
Derive a profile by the analytic model, without the devices: with --model every scheme from data
sheets, with --profile the schemes and cluster sizes that a measured profile lacks.
"""

EXAMPLES = f"""\
{model_options.FILES}
examples:
  seqplan profile derive --model llama3-8b --hardware h100-80gb --nodes 4 -o profile.json
  seqplan profile derive --profile measured.json --hardware h100-80gb --nodes 4 -o profile.json
"""

_AS_MEASURED = (
    *("precision", "context_parallel", "tp_overlap", "gradient_bytes", "sequence_parallel"),
    *("stack", "dispatcher", "expert_imbalance", "expert_parallel"),
    *("zero", "recompute", "loss", "name"),
)
"""Options that a measured profile decides."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(add_option, parser)
    model_options.add_model(
        parser, required=False, purpose="; with --profile, the sizes that it lacks"
    )
    add("--profile NAME|FILE", help="add derived schemes to this measured profile")
    model_options.add_cluster(parser)
    model_options.add_training(parser, schedule=False)
    add(
        "--expert-parallel LIST",
        type=model_options.degrees,
        default=(1,),
        help="degrees, of which each scheme has an entry: ranks that hold all experts together; "
        "default 1: each rank of tp a part of all",
    )
    add("--zero", type=int, choices=(1, 2, 3), default=1, help="stage; default 1")
    add(
        "--recompute LIST",
        type=model_options.parse_modes,
        help="recomputation modes, also as elementwise+0.5, which offloads half of the layers; "
        "default all, and these if the device file states host_memory_gb",
    )
    add("--loss", choices=LOSSES, help="default chunked")
    add("--schemes LIST", help="as u1,u2,u2.r2,tp2,tp2.pp2; default powers of two")
    add("--name NAME", help="of the profile; default by model and hardware")
    add("-o --output FILE", required=True)
    add("--json", help="print the profile")
    parser.set_defaults(as_measured={name: parser.get_default(name) for name in _AS_MEASURED})


def run(args: argparse.Namespace) -> int:
    """Run the command. ``ValueError`` for bad input."""
    if args.model is None and args.profile is None:
        raise ValueError("one of --model and --profile is required. Name a model or a profile")
    check_output(args.output, args.profile, args.model, args.hardware)
    write_derived(args, _derive_all(args) if args.profile is None else _complete(args))
    return 0


def _describe_room(profile: Profile, gpus: int) -> list[str]:
    """State that no scheme holds a token on ``gpus`` GPUs, with the fix; nothing if one does."""
    for degree in profile.expert_degrees:
        if gpus % degree == 0 and profile.at_expert_parallel(degree).usable(gpus, 1):
            return []
    experts = profile.shape.architecture.experts
    split = " or experts on more ranks with --expert-parallel 8,16,32,64" if experts else ""
    return [f"no scheme holds a token on {gpus} GPUs. Give more --nodes{split}"]


def _derive_all(args: argparse.Namespace) -> dict[str, Any]:
    """Derive every scheme from data sheets."""
    deployment = model_options.deployment_of(args)
    parts = map(model_options.name_part, (args.model, args.hardware))
    name = args.name or f"{'-'.join(parts)}-estimate"
    schemes = _schemes(args, deployment.sizes.shape, deployment.cluster, zero=args.zero)
    model_options.check_axes(args, schemes)
    modes = (*MODES, *OFFLOADING) if deployment.host_memory_bytes else MODES
    degrees = args.expert_parallel
    document = derive_profile(
        deployment, schemes, name=name, modes=args.recompute or modes, expert_degrees=degrees
    )
    return add_expected_error(document, deployment, degrees)


def _complete(args: argparse.Namespace) -> dict[str, Any]:
    """Add to the measured profile the schemes that it lacks, all derived."""
    for option, default in args.as_measured.items():
        if getattr(args, option) != default:
            raise ValueError(
                f"--{option.replace('_', '-')} is for --model alone. With --profile, schemes are "
                "derived as the others of the profile were measured"
            )
    profile = find_profile(args.profile)
    cluster = model_options.cluster_of(args)
    _check_device(args, profile, cluster.hardware)
    if cluster.hardware.cost_terms or cluster.hardware.host_memory_bytes:
        raise ValueError(
            f"{args.hardware}: cost_terms and host_memory_gb are for --model alone. With "
            "--profile, schemes are derived as the others of the profile were measured"
        )
    layouts = {(entry.scheme.tp, entry.scheme.pp) for entry in profile.schemes}
    if args.schemes is not None or layouts == {(1, 1)}:
        schemes = _schemes(args, profile.shape, cluster, zero=profile.zero_stage)
    else:
        schemes = _extend_layouts(sorted(layouts), profile.shape, cluster)
    document = complete(profile, cluster, schemes, sizes=model_options.parse_sizes(args.model))
    print(
        f"measured on {profile.hardware}, links and rates of {args.hardware}: the same devices?",
        file=sys.stderr,
    )
    return document


def _check_device(args: argparse.Namespace, profile: Profile, hardware: Hardware) -> None:
    """Check that a profile of a listed device is completed for that one. ``ValueError``.

    A file of a device's values is of a device that is not listed, whatever its base.
    """
    measured = hardware_of(profile)
    if measured is None or measured.name == hardware.name or Path(args.hardware).suffix in SUFFIXES:
        return
    raise ValueError(
        f"--hardware {args.hardware}: profile {profile.name} is of {profile.hardware}. "
        f"Give --hardware {measured.name}, or --model without --profile for {hardware.name}"
    )


def write_derived(args: argparse.Namespace, document: dict[str, Any]) -> None:
    """Check and write the profile, and print its schemes."""
    profile = write_profile(args.output, document)
    if args.json:
        print(json.dumps(document, ensure_ascii=False))
        return
    derived = sum(entry.origin == "derived" for entry in profile.schemes)
    print(
        f"{args.output}: profile {profile.name}, {count_of(len(profile.schemes), 'scheme')}, "
        f"{derived} derived"
    )
    print(f"fit: {profile.residuals}")
    room = [] if args.profile else _describe_room(profile, model_options.cluster_of(args).gpus)
    for note in [*document.get("notes", ()), *room]:
        print("\n".join(wrap_text(f"note: {note}", 98)))
    print(f"see it with: seqplan profile show {args.output} --gpus N")


def _schemes(
    args: argparse.Namespace, shape: ModelShape, cluster: ClusterHardware, *, zero: int
) -> list[Scheme]:
    """Return those of ``--schemes``, or the usual ones of powers of two."""
    if args.schemes is not None:
        return [Scheme.parse(text) for text in args.schemes.split(",")]
    return list_schemes(shape, cluster, zero=zero)


def _extend_layouts(
    layouts: Sequence[tuple[int, int]], shape: ModelShape, cluster: ClusterHardware
) -> list[Scheme]:
    """Combine Ulysses × ring with each measured layout of few stages and with tp1."""
    schemes = list_default_schemes(
        shape,
        cluster.gpus,
        cluster.gpus_per_node,
        memory_bytes=cluster.hardware.memory_bytes,
        layouts=sorted({(1, 1), *layouts}),
    )
    return [
        scheme
        for scheme in schemes
        if scheme.ulysses <= cluster.gpus_per_node
        and (scheme.sp > 1 or (scheme.tp, scheme.pp) == (1, 1))
    ]
