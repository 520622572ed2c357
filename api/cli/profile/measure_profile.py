"""``seqplan profile measure``: measure a model on this device and fit its cost model."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from seqplan.api.cli.framework.extras import require_torch
from seqplan.api.cli.framework.model_options import add_model, name_part, parse_modes, sizes_of
from seqplan.api.cli.framework.options import add_option
from seqplan.api.cli.framework.output import ProgressBar, check_output
from seqplan.api.cli.profile.fitted_profile import (
    MeasuredMode,
    add_fitted_output,
    read_host_memory,
    write_measured,
)
from seqplan.costs.fit.busy import busy
from seqplan.costs.fit.measured_profile import ProfiledDevices
from seqplan.costs.fit.samples import Sample
from seqplan.costs.model_sizes import SIZES, ModelSizes
from seqplan.costs.scheme_rules import expert_problem, scheme_problem
from seqplan.plans.recomputation import split_mode
from seqplan.plans.scheme import Scheme
from seqplan.profiler.measure.design import FIT_POINTS, DesignPoint, design

if TYPE_CHECKING:  # torch is imported only to measure
    from seqplan.runtime.models.llama import ModelConfig

BUSY_MACHINE = 1
"""Exit code if the samples are on disk, and too noisy for a profile."""

LONGEST = 10**9
"""Most tokens of a micro-batch."""

_EXPERTS = ("expert_layers", "experts", "experts_per_token", "expert_ffn", "shared_ffn")
"""Sizes of experts that the measured layers have."""

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float64": 8}

_RANGE = re.compile(r" *([0-9]{1,99}) *\.\. *([0-9]{1,99}) *")

DESCRIPTION = """\
Measure forward and backward of real layers on this device, fit T(l) = a·l² + b·l + c and the memory
of each scheme, and print the error on held-out lengths and packings. Alone it
measures schemes of one rank; under torchrun those of several: tensor, pipeline, Ulysses and ring
parallel, all ranks busy with as many pipelines of a scheme as there is room for. An interrupted run
goes on from its samples. Fails if the machine is too busy for reliable timing (exit code 1).
Without the devices, seqplan profile derive has a profile from data sheets.
"""

EXAMPLES = """\
examples:
  seqplan profile measure --model small --device cpu --lengths 64..4096 -o profile.json
  torchrun --nproc-per-node 8 -m seqplan.api.cli profile measure --model llama3-8b --device cuda \\
    --schemes u1,u2,u4,u8,u4.r2,tp2,tp4,tp8,tp2.pp2 --lengths 256..131072 -o profile.json
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_model(parser, required=True)
    add = partial(add_option, parser)
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--dtype", choices=tuple(_DTYPE_BYTES), help="default by device")
    add("--schemes LIST", default="u1", help="as u1,u2,u2.r2,tp2,tp2.pp2; default u1")
    add("--lengths FROM..TO", default="64..4096", help="tokens; default %(default)s")
    add("--expert-parallel N", default=1, help="ranks that hold all experts together; default 1")
    add("--points N", default=FIT_POINTS)
    add("--kernel NAME", help="of attention; default the first that supports the heads")
    add("--measured-layers K", default=2, help="layers that are run")
    add("--repeats N", default=25, help="of a point, at most; default 25")
    add(
        "--recompute LIST",
        type=parse_modes,
        default=("none",),
        help="recomputation modes, all or some, also as elementwise+0.5, which offloads half of "
        "the layers; default none",
    )
    add("--capacity-gib GIB", help="memory of a rank; default the device's")
    add("--even-if-busy", help="write a profile even if the machine had too much else to do")
    add("--samples FILE", help="default OUTPUT.samples.jsonl")
    add_fitted_output(parser)


def run(args: argparse.Namespace) -> int:
    """Measure missing samples and, on rank 0, write the profile; all ranks call it.

    ``ValueError`` for bad input, ``SampleError`` for bad samples.
    """
    check_output(args.output, args.samples)
    check_output(args.plot, args.output, args.samples)
    sizes = sizes_of(args.model)
    read_host_memory(args, args.recompute)
    for mode in args.recompute:
        _check_offload(mode, min(args.measured_layers, sizes.layers))
    if problem := expert_problem(args.expert_parallel, sizes.shape):
        raise ValueError(problem)
    shortest, longest = _range(args.lengths)
    points = design(shortest, longest, points=args.points)
    schemes = _possible_schemes(args, sizes)

    require_torch("measuring a profile")
    import torch

    from seqplan.profiler.measure.device import capacity_bytes
    from seqplan.profiler.measure.run import start_ranks

    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: no CUDA device is there; use --device cpu")
    if args.device == "cpu" and (
        problem := find_host_problem(
            sizes,
            min(args.measured_layers, sizes.layers),
            schemes,
            points,
            expert_parallel=args.expert_parallel,
            ranks=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
            dtype_bytes=_DTYPE_BYTES[args.dtype or "float32"],
            memory_bytes=capacity_bytes(torch.device("cpu")),
        )
    ):
        raise ValueError(problem)
    rank, world_size = start_ranks(args.device)
    runnable = _runnable(args, schemes, rank, world_size)
    path = args.samples or args.output.with_suffix(".samples.jsonl")
    measured = _measure_modes(args, sizes, points, runnable, path, rank, world_size)
    reasons = [] if args.even_if_busy else [busy(mode.samples) for mode in measured]
    reason = next((reason for reason in reasons if reason is not None), None)
    if reason is not None:
        print(
            f"seqplan: {reason}: no profile is written. {path} has the samples: delete it and "
            "measure when the machine is quiet, or pass --even-if-busy to fit them as they are",
            file=sys.stderr,
        )
    elif rank == 0:
        devices = _describe_devices(args, world_size)
        write_measured(args, measured, devices, model=name_part(args.model), ranks=world_size)
    if world_size > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    return 0 if reason is None else BUSY_MACHINE


def _measure_modes(
    args: argparse.Namespace,
    sizes: ModelSizes,
    points: Sequence[DesignPoint],
    schemes: tuple[Scheme, ...],
    path: Path,
    rank: int,
    world_size: int,
) -> list[MeasuredMode]:
    """Measure what the samples at ``path`` lack; several modes have a file each."""
    from seqplan.profiler.measure.run import Task, measure

    measured = []
    with ProgressBar() as progress:

        def report(done: int, of: int, left_s: float, sample: Sample) -> None:
            progress(f"{sample.scheme}, {sample.tokens:,} tokens; {left_s:.0f} s left", done, of)

        def warn(text: str) -> None:
            print(f"\n{text}", file=sys.stderr, flush=True)

        for mode in args.recompute:
            task = Task(
                config=_build_measured_model(sizes, mode),
                layers=min(args.measured_layers, sizes.layers),
                device=args.device,
                dtype=args.dtype or ("float32" if args.device == "cpu" else "bfloat16"),
                schemes=schemes,
                points=tuple(points),
                repeats=args.repeats,
                kernel=args.kernel,
                expert_parallel=args.expert_parallel,
            )
            of_mode = path
            if len(args.recompute) > 1:
                of_mode = path.with_name(f"{mode}.{path.name}")
            measured.append(MeasuredMode(*measure(task, of_mode, rank, world_size, report, warn)))
    return measured


def _describe_devices(args: argparse.Namespace, world_size: int) -> ProfiledDevices:
    import torch

    from seqplan.profiler.measure.device import capacity_bytes, context_bytes

    device = torch.device(args.device)
    shared = 1 if args.device == "cuda" else world_size
    return ProfiledDevices(
        gpu=args.device,
        gpus_per_node=args.gpus_per_node,
        capacity_bytes=capacity_bytes(device) / shared
        if args.capacity_gib is None
        else args.capacity_gib * 2**30,
        context_bytes=float(context_bytes(device)),
        host_memory_bytes=read_host_memory(args, args.recompute),
    )


def _check_offload(mode: str, layers: int) -> None:
    """Reject a mode that offloads no whole number of the measured layers."""
    share = split_mode(mode)[1]
    if not (layers * share).is_integer():
        raise ValueError(
            f"--recompute {mode}: {layers * share:g} of {layers} measured layers would be "
            "offloaded. Set --measured-layers so that it is a whole number"
        )


def _range(text: str) -> tuple[int, int]:
    if (ends := _RANGE.fullmatch(text)) is None:
        raise ValueError(f"--lengths must be FROM..TO in tokens, as 64..4096: {text!r}")
    first, last = int(ends[1]), int(ends[2])
    if not first or last > LONGEST:
        raise ValueError(f"--lengths must be from 1 to {LONGEST:,} tokens: {text}")
    return first, last


def _build_measured_model(sizes: ModelSizes, recompute: str) -> ModelConfig:
    """Return the model whose layers are run."""
    from seqplan.runtime.models.llama import ModelConfig

    special = sizes.architecture.as_dict()
    experts = {name: special.pop(name) for name in _EXPERTS if name in special}
    # Routing that limits a token to groups of experts is not measured, nor does it change products.
    for name in ("expert_groups", "groups_per_token"):
        special.pop(name, None)
    if experts.pop("expert_layers", sizes.layers) != sizes.layers:
        special["expert_layers"] = sizes.architecture.expert_layers
    if special:
        listed = ", ".join(f"{name} {value}" for name, value in special.items())
        raise ValueError(
            f"model: {listed}: the layers that are measured have none of these; derive a profile "
            "with seqplan profile derive"
        )
    of_model = {name: getattr(sizes, name) for name in SIZES}
    if experts:
        of_model["ffn"] = experts.pop("shared_ffn", 0)
    return ModelConfig(
        **of_model, **experts, head_dim=sizes.head_width, tied=sizes.tied, recompute=recompute
    )


def _possible_schemes(args: argparse.Namespace, sizes: ModelSizes) -> list[Scheme]:
    """Return the schemes that can be; the others are named with their reason and left out."""
    shape = sizes.shape
    possible: list[Scheme] = []
    for text in args.schemes.split(","):
        scheme = Scheme.parse(text)
        problem = scheme_problem(scheme, shape, gpus_per_node=args.gpus_per_node)
        problem = problem or _split_problem(scheme, sizes, args.expert_parallel)
        if problem is not None:
            if os.environ.get("RANK", "0") == "0":  # torchrun's; one rank prints it
                print(f"{scheme}: {problem}: left out", file=sys.stderr)
        elif scheme not in possible:
            possible.append(scheme)
    if not possible:
        raise ValueError(f"--schemes {args.schemes}: none can be measured")
    return possible


def _split_problem(scheme: Scheme, sizes: ModelSizes, degree: int) -> str | None:
    """Why experts of this scheme are not measured, or None."""
    if degree == 1 < scheme.tp and sizes.architecture.experts:
        return "the runtime does not split experts over tp. Add --expert-parallel"
    if scheme.pp > 1 and scheme.stage_gpus % degree:
        return f"its stages of {scheme.stage_gpus} ranks are no whole blocks of {degree}"
    return None


def _runnable(
    args: argparse.Namespace, schemes: Sequence[Scheme], rank: int, world_size: int
) -> tuple[Scheme, ...]:
    """Return the schemes that there are ranks for; the others are named and left out."""
    degree = args.expert_parallel
    if world_size % degree:
        raise ValueError(
            f"--expert-parallel {degree}: does not divide the {world_size} ranks. Start it with "
            "torchrun on a multiple"
        )
    runnable = tuple(
        scheme
        for scheme in schemes
        # Ranks without work would leave their block waiting.
        if scheme.gpus <= world_size and (degree == 1 or world_size % scheme.gpus == 0)
    )
    for scheme in schemes:
        if scheme not in runnable and rank == 0:
            print(
                f"{scheme} needs {scheme.gpus} ranks, there are {world_size}: left out "
                "(start with torchrun)",
                file=sys.stderr,
            )
    if not runnable:
        raise ValueError(f"--schemes {args.schemes}: none runs on {world_size} ranks")
    return runnable


HOST_FLOPS = 2e12
"""Operations a second that no host is assumed to exceed in these layers."""

LONGEST_MEASUREMENT_S = 86_400.0
"""Computing that is measured at most."""


def find_host_problem(
    sizes: ModelSizes,
    layers: int,
    schemes: Sequence[Scheme],
    points: Sequence[DesignPoint],
    *,
    expert_parallel: int,
    ranks: int,
    dtype_bytes: int,
    memory_bytes: float,
) -> str | None:
    """Return why this host cannot measure ``layers`` of a model, with what to do; None if it can.

    ``ranks``: processes on the host. Counts parameters with their gradients, and one forward and
    backward of each point, so that measuring needs more.
    """
    share = layers / sizes.layers
    rest = share * (sizes.layers_parameters - sizes.expert_parameters) + sizes.embedding_parameters
    experts = share * sizes.expert_parameters / expert_parallel
    least_tp = min(scheme.tp for scheme in schemes)
    needed = 2.0 * dtype_bytes * ranks * (rest / least_tp + experts)
    if needed > memory_bytes:
        return (
            f"--model: {layers} layers with gradients need {needed / 2**30:,.0f} GiB on {ranks} "
            f"ranks, this host has {memory_bytes / 2**30:,.0f}. Use seqplan profile derive, or "
            "fewer --measured-layers"
        )
    lengths = [length for point in points for length in point.lengths]
    linear = 6.0 * (share * sizes.active_parameters + sizes.vocab * sizes.hidden) * sum(lengths)
    attention = 6.0 * share * sizes.attending_layers * sizes.attention_width
    seconds = (linear + attention * sum(float(length) ** 2 for length in lengths)) / HOST_FLOPS
    seconds *= len(schemes) / ranks
    if seconds > LONGEST_MEASUREMENT_S:
        return (
            f"--model: one pass over the points takes {seconds / 86_400:,.0f} days or more on a "
            "CPU. Use seqplan profile derive, or shorter --lengths"
        )
    return None
