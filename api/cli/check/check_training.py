"""``seqplan check training``: compare ranks that execute plans with one process."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from seqplan.api.check_training.check import (
    ELEMENT_BYTES,
    GATES,
    Check,
    CheckedStep,
    CheckRequest,
    count_expected_bytes,
    count_step_gathered,
    first_plans,
    size_model,
)
from seqplan.api.check_training.processes import RankServer, rank_server
from seqplan.api.check_training.runs import check_training
from seqplan.api.cli.framework.extras import require_torch
from seqplan.api.cli.framework.options import add_option
from seqplan.api.cli.framework.output import Columns, ProgressBar
from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import list_shipped, load_shipped
from seqplan.plans.format.codec import digest
from seqplan.plans.plan import Plan
from seqplan.plans.recomputation import rank_mode

STEPS = 10
LARGE_STEP = 65_536
"""Tokens of a step from which a CPU takes minutes for it."""

DESCRIPTION = """\
Execute the first steps of a plan file with a small Llama on real ranks, one process each on this
machine's CPU over gloo, and train the same model on the same sequences in one reference
process. Losses, gradient norms and final parameters must agree; exit code 1 if they do not.
"""

EXAMPLES = """\
examples:
  seqplan check training --plans plans.jsonl --ranks 4 --steps 10
  seqplan check training --plans plans.jsonl --ranks 4 --steps 3 --data corpus.idx --dtype float64
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(add_option, parser)
    add("--plans FILE", required=True)
    add("--ranks N", required=True, help="as many as the plans are for")
    add("--steps K", help=f"default {STEPS}, or all that there are")
    add(
        "--data TOKENS",
        help="token file: Megatron .idx with .bin, .npy or .jsonl; default: tokens made from the "
        "seed and the sample's id, for any plan",
    )
    add("--seed S", default=0, help="default 0")
    add("--dtype", choices=tuple(GATES), default="float32", help="of the ranks; default float32")
    add("--json", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command: 0 if both runs agree, else 1. ``ValueError`` on bad input."""
    require_torch("check training")
    plans = first_plans(args.plans, args.ranks, args.steps or STEPS)
    if args.data is not None and not Path(args.data).exists():
        raise ValueError(f"{args.data}: No such file or directory. Check the path")
    if args.seed + args.ranks >= 2**63:
        raise ValueError(f"--seed {args.seed}: is too large; below {2**63 - args.ranks}")
    if args.steps is not None and len(plans) < args.steps:
        few = f"{len(plans)} plan{'s' if len(plans) > 1 else ''}, not {args.steps}: all are run"
        print(f"seqplan: {args.plans}: has {few}", file=sys.stderr)
    for warning in warnings(plans):
        print(f"seqplan: {warning}", file=sys.stderr)
    request = CheckRequest(plans, args.data, args.seed, args.dtype)
    with rank_server() as server:
        if args.json:
            with ProgressBar() as progress:
                check = check_training(request, server=server, progress=progress)
            print(json.dumps(document(check, args.data)))
        else:
            check = print_check(request, server)
    return 0 if check.agrees else 1


def print_check(request: CheckRequest, server: RankServer, profile: Profile | None = None) -> Check:
    """Run a check and print it for people, each step when it is done; errors as ``check_training``.

    ``profile``: the plans', if it is at hand.
    """
    plans, dtype = request.plans, request.dtype
    columns = step_columns(plans, dtype)
    begun = False
    with ProgressBar() as progress:

        def step_seen(step: CheckedStep) -> None:
            nonlocal begun
            progress.clear()
            if not begun:
                print("\n".join([*setting_lines(request), "", *columns.head()]))
            begun = True
            print(columns.line(step_cells(step, plans, dtype)), flush=True)

        check = check_training(request, server=server, progress=progress, step_seen=step_seen)
    print("\n".join(["", *mode_lines(check), *verdict_lines(check, profile)]))
    return check


@dataclass(frozen=True)
class KeptBytes:
    """Micro-batches of a mode, and the bytes a token kept on the fullest stage."""

    micro_batches: int
    measured: float
    expected: float


def count_saved(check: Check) -> dict[str, KeptBytes]:
    """Count the micro-batches of each recomputation mode and their bytes; see ``KeptBytes``.

    ``expected`` by the memory model of the checked model; empty for plans without modes.
    """
    totals: dict[str, list[float]] = {}
    for step in check.steps:
        for checked in step.micro_batches:
            if checked.recompute is None:
                continue
            pipeline = step.plan.pipelines[checked.pipeline]
            scheme, batch = pipeline.scheme, pipeline.micro_batches[checked.place]
            of_mode = totals.setdefault(checked.recompute, [0, 0.0, 0.0, 0])
            expected = count_expected_bytes(check.sizes, check.dtype, scheme, checked.recompute)
            of_mode[0] += 1
            of_mode[1] += checked.saved_bytes * scheme.stage_gpus
            of_mode[2] += expected * batch.padded_tokens
            of_mode[3] += batch.padded_tokens
    return {
        mode: KeptBytes(int(number), measured / tokens, expected / tokens)
        for mode in sorted(totals, key=rank_mode)
        for number, measured, expected, tokens in [totals[mode]]
    }


def mode_lines(check: Check) -> list[str]:
    """State what micro-batches of each recomputation mode kept for backward."""
    return [
        f"recomputation {mode}: {kept.measured / 1024:,.1f} KiB a token kept, "
        f"{kept.expected / 1024:,.1f} expected, micro-batches: {kept.micro_batches:,}"
        for mode, kept in count_saved(check).items()
    ]


def warnings(plans: Sequence[Plan]) -> list[str]:
    """Return cautions of work that may take long on this machine."""
    cautions = []
    largest = max(plan.tokens for plan in plans)
    if largest >= LARGE_STEP:
        cautions.append(f"steps of up to {largest:,} tokens may take minutes each on a CPU")
    ranks, cores = plans[0].world_size, os.cpu_count() or 1
    if ranks > 8 * cores:
        cautions.append(f"{ranks} ranks on {cores} cores: starting them takes long, and memory")
    return cautions


def setting_lines(request: CheckRequest) -> list[str]:
    """Return the lines of the settings."""
    plans, data, dtype = request.plans, request.data, request.dtype
    sizes = size_model(plans)
    reference = "float32" if dtype == "bfloat16" else dtype
    source = "made from the seed and each sample's id"
    if data is not None:
        source = f"of {data}, ids modulo {sizes.vocab}"
    special = sizes.architecture
    experts = (
        f"; {special.experts} experts in each layer, {special.experts_per_token} a token, over "
        f"{plans[0].expert_parallel} ranks, with a router loss"
        if special.experts
        else ""
    )
    return [
        (
            f"{plans[0].world_size} ranks ({dtype}) against one process ({reference}): Llama of "
            f"{sizes.layers} layers, hidden {sizes.hidden}, {sizes.heads} heads "
            f"({sizes.kv_heads} KV), vocabulary {sizes.vocab}{experts}"
        ),
        f"tokens {source}; AdamW, clipped to a gradient norm of 1",
    ]


def verdict_lines(check: Check, profile: Profile | None = None) -> list[str]:
    """Explain the columns of the table, and state whether the runs agree."""
    gates = check.gates
    return [
        "gathered: parameters that the fullest rank receives; as many gradients go back",
        "messages: the most by which a rank's part comes; none: all of it comes by all-gathers",
        f"predicted: forward and backward {describe_prediction(check.steps[0].plan, profile)}",
        (
            f"measured: the slowest rank's whole step on this machine's {os.cpu_count()} cores, "
            "which the ranks share with the one process"
        ),
        (
            f"largest difference of parameters at the end: {check.parameter_difference:.1e} "
            f"({check.parameter})"
        ),
        (
            f"{'the runs agree' if check.agrees else 'THE RUNS DIFFER'}: limits are "
            f"{gates.loss:g} on losses and {gates.gradient_norm:g} on gradient norms, relative, "
            f"and {gates.parameter:g} on parameters"
        ),
    ]


def step_columns(plans: Sequence[Plan], dtype: str) -> Columns:
    """Columns for the steps of these plans, wide enough for losses and times yet unknown."""
    likely = [
        step_cells(CheckedStep(plan, 10.0, 10.0, 1.0, 1.0, 10 * max(plan.tokens, 1)), plans, dtype)
        for plan in plans
    ]
    header = ("step", "tokens", "loss, ranks", "one process", "differ by", "norms by")
    sync = ("gathered", "messages")
    times = ("tokens/s", "predicted", "measured")
    return Columns((*header, *sync, *times, "  strategy"), likely, left=0)


def step_cells(step: CheckedStep, plans: Sequence[Plan], dtype: str) -> tuple[str, ...]:
    """A step's line of the table; ``plans``: of all steps, which are checked with one model."""
    gathered = count_step_gathered(step.plan, size_model(plans))
    return (
        str(step.plan.step),
        f"{step.plan.tokens:,}",
        f"{step.loss:.8f}",
        f"{step.reference_loss:.8f}",
        f"{step.loss_difference:.1e}",
        f"{step.gradient_norm_difference:.1e}",
        f"{gathered.elements * ELEMENT_BYTES[dtype] / 2**20:.2f} MiB",
        "none" if gathered.messages is None else f"{gathered.messages:,}",
        f"{step.tokens_per_s:,.0f}",
        f"{step.plan.predicted_ms:,.0f} ms",
        f"{step.measured_ms:,.0f} ms",
        "  " + step.plan.strategy_text,
    )


def describe_prediction(plan: Plan, profile: Profile | None) -> str:
    """Describe the model and hardware that a plan's times are for, if known."""
    if profile is None:
        of_plan = (
            p for p in map(load_shipped, list_shipped()) if p.digest == plan.provenance.profile
        )
        profile = next(of_plan, None)
    if profile is None:
        return "by the plan's profile, for its model and hardware"
    return f"by profile {profile.name}, for its model on {profile.hardware}"


def document(check: Check, data: str | None) -> dict[str, Any]:
    """Return the check as JSON; NaN is null."""
    return {
        "agrees": check.agrees,
        "ranks": check.steps[0].plan.world_size,
        "dtype": check.dtype,
        "data": data,
        "model": asdict(check.sizes),
        "limits": asdict(check.gates),
        "parameter": check.parameter,
        "parameter_difference": _number(check.parameter_difference),
        "recomputation": {
            mode: {
                "micro_batches": kept.micro_batches,
                "kept_bytes_per_token": kept.measured,
                "expected_bytes_per_token": kept.expected,
            }
            for mode, kept in count_saved(check).items()
        },
        "steps": [_step_fields(step, check) for step in check.steps],
    }


_COMPARED = (
    *("loss", "reference_loss", "loss_difference"),
    *("gradient_norm", "reference_gradient_norm", "gradient_norm_difference"),
)
"""Results of both runs, in the order in which JSON lists them."""


def _step_fields(step: CheckedStep, check: Check) -> dict[str, Any]:
    gathered = count_step_gathered(step.plan, check.sizes)
    return {
        "step": step.plan.step,
        "digest": digest(step.plan),
        "strategy": step.plan.strategy_text,
        "tokens": step.plan.tokens,
        **{name: _number(getattr(step, name)) for name in _COMPARED},
        "gathered_bytes": gathered.elements * ELEMENT_BYTES[check.dtype],
        "messages": gathered.messages,
        "tokens_per_s": step.tokens_per_s,
        "predicted_ms": step.plan.predicted_ms,
        "measured_ms": step.measured_ms,
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
