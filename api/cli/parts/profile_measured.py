"""``seqplan profile`` on this device: measure micro-batches, fit them, write and print the fit."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from seqplan.api.cli.framework.extras import need_torch
from seqplan.api.cli.framework.model_options import sizes_of
from seqplan.api.cli.framework.terminal import ProgressBar, percent, table
from seqplan.costs.fit.busy import busy
from seqplan.costs.fit.latency_fit import Errors
from seqplan.costs.fit.measured_profile import (
    MeasuredFit,
    ProfiledDevices,
    find_unfitted,
    fit_all,
    profile_document,
)
from seqplan.costs.fit.samples import MeasuredOn, Sample
from seqplan.costs.fit.sync_samples import SyncSample
from seqplan.costs.model_sizes import SIZES, ModelSizes
from seqplan.costs.profile import Profile
from seqplan.costs.scheme_rules import scheme_problem
from seqplan.plans.format.atomic_file import atomic_write
from seqplan.plans.scheme import Scheme
from seqplan.profiler.measure.design import design

if TYPE_CHECKING:  # torch is imported only to measure
    from seqplan.runtime.models.llama import ModelConfig

GPUS_PER_NODE = 8
"""Default of ``--gpus-per-node``."""

BUSY_MACHINE = 1
"""Exit code if the samples are on disk, and too noisy for a profile."""

LONGEST = 10**9
"""Most tokens of a micro-batch."""

_RANGE = re.compile(r" *([0-9]{1,99}) *\.\. *([0-9]{1,99}) *")


def measure_and_write(args: argparse.Namespace) -> int:
    """Measure what the samples lack and, on rank 0, write the profile; all ranks call it."""
    sizes = sizes_of(args)
    shortest, longest = _range(args.lengths)
    points = design(shortest, longest, points=args.points)
    schemes = _possible_schemes(args, sizes)

    need_torch("measuring a profile")
    import torch

    from seqplan.profiler.measure.device import capacity_bytes, context_bytes
    from seqplan.profiler.measure.run import Task, measure, start_ranks

    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: no CUDA device is there; use --device cpu")
    rank, world_size = start_ranks(args.device)
    runnable = _runnable(args, schemes, rank, world_size)
    task = Task(
        config=_build_measured_model(sizes, args.checkpointing),
        layers=min(args.measured_layers, sizes.layers),
        device=args.device,
        dtype=args.dtype or ("float32" if args.device == "cpu" else "bfloat16"),
        schemes=runnable,
        points=tuple(points),
        repeats=args.repeats,
    )
    path = args.samples or args.output.with_suffix(".samples.jsonl")
    with ProgressBar(sys.stderr) as progress:

        def report(done: int, of: int, left_s: float, sample: Sample) -> None:
            progress(f"{sample.scheme}, {sample.tokens:,} tokens; {left_s:.0f} s left", done, of)

        def complain(text: str) -> None:
            print(f"\n{text}", file=sys.stderr, flush=True)

        measured_on, samples, syncs = measure(task, path, rank, world_size, report, complain)
    reason = None if args.even_if_busy else busy(samples)
    if reason is not None:
        print(
            f"seqplan: {reason}: no profile is written. {path} has the samples: delete it and "
            "measure when the machine is quiet, or pass --even-if-busy to fit them as they are",
            file=sys.stderr,
        )
    elif rank == 0:
        device = torch.device(args.device)
        shared = 1 if args.device == "cuda" else world_size
        write_measured(
            args,
            measured_on,
            samples,
            capacity_gib=capacity_bytes(device) / shared / 2**30
            if args.capacity_gib is None
            else args.capacity_gib,
            context_bytes=context_bytes(device),
            ranks=world_size,
            syncs=syncs,
        )
    if world_size > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    return 0 if reason is None else BUSY_MACHINE


def write_measured(
    args: argparse.Namespace,
    measured_on: MeasuredOn,
    samples: Sequence[Sample],
    *,
    capacity_gib: float,
    context_bytes: int = 0,
    ranks: int = 1,
    syncs: Sequence[SyncSample] = (),
) -> None:
    """Fit the samples, write the profile and print its errors."""
    for problem in find_unfitted(samples).values():
        print(f"{problem}: left out", file=sys.stderr)
    fit = fit_all(measured_on, samples)
    gpu = measured_on.device.split(",")[0]
    devices = ProfiledDevices(
        gpu=measured_on.device,
        gpus_per_node=args.gpus_per_node or GPUS_PER_NODE,
        capacity_bytes=capacity_gib * 2**30,
        context_bytes=float(context_bytes),
    )
    document = profile_document(
        fit,
        devices,
        name=args.name or f"{args.model or 'model'}-{gpu}".lower().replace(" ", "-"),
        source=_source(measured_on, ranks),
        syncs=syncs,
    )
    Profile.from_document(document, str(args.output))
    with atomic_write(args.output, "w") as file:
        file.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    if args.plot is not None:
        _plot(args, document["name"], document["source"], samples, fit)
    if args.json:
        print(json.dumps(document, ensure_ascii=False))
        return
    print("\n".join([*fit_lines(fit), *_sync_lines(document.get("sync", ()))]))
    print(f"\n{args.output}: profile {document['name']}")


def _source(measured_on: MeasuredOn, ranks: int) -> str:
    """Describe the profile's origin: the devices, the date and the command."""
    today = datetime.now(UTC).date().isoformat()
    command = shlex.join(["seqplan", *sys.argv[1:]])
    where = measured_on.device if ranks == 1 else f"{measured_on.device}, {ranks} ranks"
    return f"measured on {where}, {measured_on.dtype}, {today}: {command}"


def _plot(
    args: argparse.Namespace, name: str, source: str, samples: Sequence[Sample], fit: MeasuredFit
) -> None:
    from seqplan.api.report.fit_page import render_fits

    layers = fit.measured_on.sizes()["layers"]
    page = render_fits(name, source, layers, samples, fit.latencies)
    with atomic_write(args.plot, "w") as file:
        file.write(page)


def fit_lines(fit: MeasuredFit) -> list[str]:
    """Tabulate the fits of all schemes, with the reasons of suspect ones and notes."""
    latencies, memory = fit.latencies, fit.memory
    header = ("scheme", "a ms/token²", "b ms/token", "c ms", "UtilLen", "in-sample", "held out")
    rows = [
        (
            str(scheme),
            f"{scheme_fit.latency.a:.3g}",
            f"{scheme_fit.latency.b:.3g}",
            f"{scheme_fit.latency.c:.3g}",
            str(scheme_fit.latency.util_len()),
            _errors(scheme_fit.in_sample),
            _errors(scheme_fit.held_out),
            _errors(scheme_fit.packed),
            scheme_fit.verdict,
        )
        for scheme, scheme_fit in latencies.items()
    ]
    lines = table((*header, "packed", "verdict"), rows)
    lines.append("errors: median / p90, relative")
    lines += [
        f"{scheme}: {remark}"
        for scheme, scheme_fit in latencies.items()
        for remark in (*scheme_fit.reasons, *scheme_fit.notes)
    ]
    counted = "peak of the allocator" if memory.of_allocator else "kept by autograd"
    for tp, per_token in memory.bytes_per_token.items():
        lines.append(f"memory: {per_token:,.0f} bytes a token at tp {tp}, {counted}")
    lines.append(f"memory error: {_errors(memory.errors)}")
    return lines


def _sync_lines(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return lines of the model's sync times, by layout and number of ranks."""
    return [
        f"sync: {Scheme(entry['tp'], entry['pp'])} on {entry['gpus']} ranks "
        f"{entry['ms']:,.1f} ms, optimizer {entry['optimizer_ms']:,.1f} ms"
        for entry in entries
    ]


def _errors(errors: Errors) -> str:
    if errors.median is None or errors.p90 is None:
        return "–"
    return f"{percent(errors.median)} / {percent(errors.p90)}"


def _range(text: str) -> tuple[int, int]:
    if (ends := _RANGE.fullmatch(text)) is None:
        raise ValueError(f"--lengths {text!r}: wants FROM..TO in tokens, as 64..4096")
    first, last = int(ends[1]), int(ends[2])
    if last > LONGEST:
        raise ValueError(f"--lengths {text}: wants at most {LONGEST:,} tokens")
    return first, last


def _build_measured_model(sizes: ModelSizes, checkpointing: str) -> ModelConfig:
    """Return the model whose layers are run."""
    from seqplan.runtime.models.llama import ModelConfig

    if special := sizes.architecture.as_dict():
        listed = ", ".join(f"{name} {value}" for name, value in special.items())
        raise ValueError(
            f"model: {listed}: the layers that are measured have none of these; derive a profile "
            "with --estimate --hardware"
        )
    return ModelConfig(
        **{name: getattr(sizes, name) for name in SIZES},
        head_dim=sizes.head_width,
        tied=sizes.tied,
        checkpointing=checkpointing,
    )


def _possible_schemes(args: argparse.Namespace, sizes: ModelSizes) -> list[Scheme]:
    """Return the schemes that can be; the others are named with their reason and left out."""
    shape = sizes.shape
    possible: list[Scheme] = []
    for text in (args.schemes or "u1").split(","):
        scheme = Scheme.parse(text)
        problem = scheme_problem(scheme, shape, gpus_per_node=args.gpus_per_node or GPUS_PER_NODE)
        if problem is not None:
            if os.environ.get("RANK", "0") == "0":  # torchrun's; one rank speaks for all
                print(f"{scheme}: {problem}: left out", file=sys.stderr)
        elif scheme not in possible:
            possible.append(scheme)
    if not possible:
        raise ValueError(f"--schemes {args.schemes}: none can be measured")
    return possible


def _runnable(
    args: argparse.Namespace, schemes: Sequence[Scheme], rank: int, world_size: int
) -> tuple[Scheme, ...]:
    """Return the schemes that there are ranks for; the others are named and left out."""
    runnable = tuple(scheme for scheme in schemes if scheme.gpus <= world_size)
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
