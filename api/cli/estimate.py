"""``seqplan estimate``: time and memory of an iteration from data sheets, nothing measured."""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from seqplan.api.cli.framework import model_options
from seqplan.api.cli.framework.options import add_option
from seqplan.api.cli.framework.output import count_of, table
from seqplan.costs.analytic.deployment import LOSSES, RECOMPUTED_MODULES, Deployment
from seqplan.costs.analytic.estimate import Estimate, Load, estimate, problem
from seqplan.costs.analytic.gpus.hardware import GIB
from seqplan.costs.analytic.memory import VERDICTS
from seqplan.costs.profiled_scheme import label_entry
from seqplan.planner.sync.derive import WHOLE, ParameterTraffic
from seqplan.plans.percent import percent, wrap_text
from seqplan.plans.recomputation import MODES
from seqplan.plans.scheme import Scheme

NONE_FITS = 3
"""Exit code if none of the printed estimates fits into memory."""

DESCRIPTION = """\
Estimate an iteration of equal sequences: milliseconds by term, TFLOP/s, model FLOPs utilization,
and bytes on the fullest GPU. From data sheets and kernel efficiencies; nothing is measured (see
seqplan profile validate for how far that is right). Lists of degrees give a table, fastest first;
schemes that do not fit into memory come last, after tight ones: within a tenth of the memory,
the error of the bytes. Exit code 3: estimates are printed, and none of them fits or is tight;
2: no scheme can run at all.
"""

EXAMPLES = f"""\
{model_options.FILES}
examples:
  seqplan estimate --model llama3-8b --hardware a800-80gb --nodes 2 --ulysses 4 --ring 4 \\
    --seq-len 65536 --batch 1
  seqplan estimate --model llama-7b --hardware a800-80gb --tp 1,2,4,8 --ulysses 1,2,4,8 \\
    --ring 1,2,4,8 --seq-len 30720 --batch 16
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(add_option, parser)
    model_options.add_model(parser, required=True)
    model_options.add_cluster(parser)
    for axis in ("tp", "pp", "ulysses", "ring"):
        add(f"--{axis} N,N", type=model_options.degrees, default=(1,), help="default 1")
    add(
        "--expert-parallel N,N",
        type=model_options.degrees,
        default=(1,),
        help="ranks that hold all experts together; default 1: each rank of tp a part of all",
    )
    add(
        "--expert-tensor-parallel N",
        default=1,
        help="ranks that each expert is split over, with --expert-parallel above 1; default 1",
    )
    add("--seq-len L", required=True, help="tokens")
    add(
        "--batch B",
        help="sequences an iteration; default the smallest number that all schemes can run",
    )
    add("--micro-batch B", default=1, help="sequences; default 1")
    add("--zero", type=int, choices=(1, 2, 3), default=1, help="stage; default 1")
    add(
        "--recompute MODE",
        type=model_options.parse_mode_or_modules,
        default="none",
        help=f"{', '.join(MODES)}; with +SHARE that part of the layers goes to host memory; or "
        f"parts by Megatron's names: {','.join(RECOMPUTED_MODULES)}; default none",
    )
    add("--loss", choices=LOSSES, default="chunked", help="default chunked")
    model_options.add_training(parser, schedule=True)
    add("--json", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command. ``ValueError`` if no scheme can run; 3 if none fits into memory."""
    deployment = model_options.deployment_of(args, longest=args.seq_len)
    axes = (args.tp, args.pp, args.ulysses, args.ring)
    schemes = [Scheme(*axis_degrees) for axis_degrees in itertools.product(*axes)]
    model_options.check_axes(args, schemes)
    if args.zero == 3 and args.sync == "hidden":
        raise ValueError("--sync hidden: ZeRO 3 has no separate sync. Leave --sync out")
    batch = args.batch or _find_batch(schemes, deployment.cluster.gpus, args.micro_batch)
    load = Load(seq_len=args.seq_len, batch=batch, micro_batch=args.micro_batch)
    estimates, rejected = [], {}
    of_degree = {
        degree: replace(deployment, experts=model_options.experts_of(args, degree))
        for degree in args.expert_parallel
    }
    for degree, scheme in itertools.product(of_degree, schemes):
        chosen = of_degree[degree]
        if reason := problem(chosen, scheme, load):
            rejected[label_entry(scheme, degree)] = reason
        else:
            estimates.append(estimate(chosen, scheme, load))
    if not estimates:
        first = next(iter(rejected))
        others = f", and {len(rejected) - 1} others" if len(rejected) > 1 else ""
        raise ValueError(f"no scheme can run: {first}: {rejected[first]}{others}")
    estimates.sort(
        key=lambda estimated: (
            VERDICTS.index(estimated.verdict),
            estimated.iteration_ms,
            estimated.scheme,
            estimated.expert_parallel,
        )
    )
    if args.json:
        document = {
            "hardware": deployment.cluster.hardware.name,
            "unchecked": "; ".join(deployment.notes) or None,
            "batch": batch,
            "estimates": [as_json(estimated) for estimated in estimates],
            "rejected": rejected,
        }
        print(json.dumps(document, ensure_ascii=False))
    else:
        single = len(estimates) == 1
        lines = (
            _describe_model(deployment, estimates[0])
            if single
            else _rank_rows(deployment, estimates)
        )
        if args.batch is None and batch > 1:
            lines.append(f"batch: {batch:,} sequences, the fewest that all schemes can run")
        lines += _left_out(rejected)
        if not any(estimated.fits for estimated in estimates):
            least = min(estimates, key=lambda estimated: estimated.peak_bytes)
            lines += _none_fits(args, deployment, least)
        print("\n".join(lines))
    return 0 if any(estimated.fits for estimated in estimates) else NONE_FITS


def _find_batch(schemes: Sequence[Scheme], gpus: int, micro_batch: int) -> int:
    """Find the fewest sequences that give each replica of every scheme whole micro-batches."""
    running = (scheme for scheme in schemes if gpus % scheme.gpus == 0)
    return math.lcm(micro_batch, *(gpus // scheme.gpus * micro_batch for scheme in running))


_RESULTS = (
    *("expert_parallel", "dp", "micro_batches", "iteration_ms"),
    *("tokens_per_s", "tflops_per_gpu", "mfu"),
)
_SIZES = ("peak_bytes", "usable_bytes", "capacity_bytes", "host_bytes")


def as_json(estimated: Estimate) -> dict[str, Any]:
    """An estimate as JSON, bytes as whole numbers."""
    return {
        "scheme": estimated.scheme.as_dict(),
        **{name: getattr(estimated, name) for name in _RESULTS},
        "terms_ms": dict(estimated.terms_ms),
        "memory_bytes": {name: round(size) for name, size in estimated.memory_bytes.items()},
        **{name: round(getattr(estimated, name)) for name in _SIZES},
        "fits": estimated.fits,
        "verdict": estimated.verdict,
    }


def _rank_rows(deployment: Deployment, estimates: list[Estimate]) -> list[str]:
    marked = "unchecked" if deployment.notes else ""
    lines = table(
        (
            *("scheme", "dp", "iteration", "tokens/s", "TFLOP/s", "MFU"),
            *(("efficiencies",) if marked else ()),
            *("peak", "memory", "most time in"),
        ),
        [
            (
                estimated.label,
                str(estimated.dp),
                _time(estimated.iteration_ms),
                f"{estimated.tokens_per_s:,.0f}",
                f"{estimated.tflops_per_gpu:.1f}",
                percent(estimated.mfu),
                *((marked,) if marked else ()),
                f"{estimated.peak_bytes / GIB:.1f} GiB",
                estimated.verdict,
                _largest(estimated),
            )
            for estimated in estimates
        ],
    )
    return lines + _print_warnings(deployment)


def _print_warnings(deployment: Deployment) -> list[str]:
    return [line for note in deployment.notes for line in wrap_text(note, 98)]


def _none_fits(args: argparse.Namespace, deployment: Deployment, least: Estimate) -> list[str]:
    """State options that fit if nothing does; ``least``: the estimate with the fewest bytes."""
    from seqplan.costs.analytic.fitting import MOST_NODES, find_fitting

    deployment = replace(deployment, experts=model_options.experts_of(args, least.expert_parallel))
    batch = least.dp * least.micro_batches * args.micro_batch
    load = Load(seq_len=args.seq_len, batch=batch, micro_batch=args.micro_batch)
    fitting = find_fitting(deployment, least.scheme, load, any_batch=args.batch is None)
    hint = (
        f"nor does any --tp, --ulysses, --ring, --zero or --recompute full on up to {MOST_NODES:,} "
        "nodes; give a shorter --seq-len"
    )
    if fitting is not None:
        options = " ".join(f"--{name} {value}" for name, value in fitting.changed.items())
        verdict = "is tight" if fitting.estimated.verdict == "tight" else "fits"
        hint = f"with {options} it {verdict}: {_room(fitting.estimated)}"
    return wrap_text(f"none fits: {least.label} needs least, {_room(least)}; {hint}", 98)


def _room(estimated: Estimate) -> str:
    return f"{estimated.peak_bytes / GIB:.1f} of {estimated.usable_bytes / GIB:.1f} GiB usable"


def _left_out(rejected: dict[str, str]) -> list[str]:
    """The schemes that cannot run, by reason."""
    lines = []
    for reason in dict.fromkeys(rejected.values()):
        names = [scheme for scheme, why in rejected.items() if why == reason]
        lines += wrap_text(f"left out ({reason}): {', '.join(names)}", 98)
    return lines


def _largest(estimated: Estimate) -> str:
    """The two largest terms with their shares."""
    terms = sorted(estimated.terms_ms.items(), key=lambda term: -term[1])[:2]
    return ", ".join(f"{name} {percent(ms / estimated.iteration_ms, 0)}" for name, ms in terms)


def _describe_model(deployment: Deployment, estimated: Estimate) -> list[str]:
    cluster = deployment.cluster
    setup = (
        f"{estimated.label} × dp {estimated.dp} on {cluster.nodes} × {cluster.gpus_per_node} "
        f"{cluster.hardware.name}, {count_of(estimated.micro_batches, 'micro-batch')} a replica"
    )
    result = (
        f"{_time(estimated.iteration_ms)} an iteration, {estimated.tokens_per_s:,.0f} tokens/s, "
        f"{estimated.tflops_per_gpu:.1f} TFLOP/s per GPU, MFU {percent(estimated.mfu)} "
        "(causal attention, no recomputation)"
    )
    lines = [setup, result, *_print_warnings(deployment), ""]
    lines += table(
        ("term", "time", "share"),
        [
            (name, _time(ms), percent(ms / estimated.iteration_ms))
            for name, ms in sorted(estimated.terms_ms.items(), key=lambda term: -term[1])
        ],
    )
    lines.append("")
    lines += table(
        ("memory of the fullest GPU", "GiB"),
        [(name, f"{size / GIB:.2f}") for name, size in estimated.memory_bytes.items() if size],
    )
    lines.append(f"{estimated.verdict}: {_room(estimated)}")
    if estimated.host_bytes:
        lines.append(
            f"host memory for each GPU: {estimated.host_bytes / GIB:.1f} of "
            f"{estimated.host_capacity_bytes / GIB:.1f} GiB"
        )
    if deployment.zero < 3 and cluster.gpus > 1:
        lines += wrap_text(_sync_of_plans(deployment, estimated), 98)
    lines += ["", *wrap_text(f"hardware: {cluster.hardware.source}", 98)]
    return lines


def _sync_of_plans(deployment: Deployment, estimated: Estimate) -> str:
    """State the sync and optimizer that plans count in place of this estimate's."""
    cluster, layout = deployment.cluster, (estimated.scheme.tp, estimated.scheme.pp)
    traffic = ParameterTraffic(
        shape=deployment.sizes.shape,
        gpus=cluster.gpus,
        gpus_per_node=cluster.gpus_per_node,
        links=cluster.hardware,
        expert_parallel=estimated.expert_parallel,
    )
    sync_ms = traffic.alone_ms(layout, collectives=False)
    by = "collectives" if layout == WHOLE else "messages between owners and holders"
    return (
        f"propose, plan and compare count {_time(sync_ms)} of sync, as seqplan's runtime does it: "
        f"by {by}, nothing hidden; and {_time(traffic.optimizer_ms())} of optimizer"
    )


def _time(ms: float) -> str:
    return f"{ms:,.1f} ms" if ms < 1e5 else f"{ms / 1e3:,.1f} s"
