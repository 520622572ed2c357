"""``seqplan trace``: a step's simulated execution as a Chrome trace, for Perfetto."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from seqplan.api.cli.check.check_plans import find_part
from seqplan.api.cli.framework.options import add_option, natural
from seqplan.api.cli.framework.output import check_output
from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import find_profile, list_shipped, load_shipped
from seqplan.planner.simulation.one_f_one_b import FORWARD_FRACTION, ForwardFraction, TimedPass
from seqplan.planner.simulation.timeline import PipelineTimeline, PlanTimeline, plan_timeline
from seqplan.plans.format.atomic_file import write_text
from seqplan.plans.format.plan_file import check_sound, find_step
from seqplan.plans.plan import Plan, PlannedPipeline
from seqplan.plans.ranges import ranges_text

DESCRIPTION = """\
Write the simulated execution of one step as a Chrome trace: open it in Perfetto. A process is a
pipeline, a thread a stage of it, an event one forward or backward of a micro-batch.
"""

EXAMPLES = """\
examples:
  seqplan trace plans.jsonl --step 3 -o trace.json
"""

ASSUMED = "assumed: the plan's profile does not ship and was not given"
"""Source of forward's share of a micro-batch without a profile."""

PHASES = {"F": "forward", "B": "backward"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(add_option, parser)
    add("plans", metavar="plans.jsonl", type=Path)
    add("--step K", type=natural, required=True)
    add(
        "--profile NAME|FILE",
        help="the plan's profile, with forward's share of a micro-batch; found by itself "
        "if it ships",
    )
    add("-o --output FILE", help="trace.json; without it, stdout")


def run(args: argparse.Namespace) -> int:
    """Run the command. ``ValueError`` when there is no such step or its plan breaks a rule."""
    check_output(args.output, args.plans)
    plan = find_step(args.plans, args.step)
    check_sound(plan, f"{args.plans}: step {plan.step}")
    profile = None if args.profile is None else find_profile(args.profile)
    shares = find_forward_fraction(plan, profile, str(args.plans))
    document = json.dumps(trace(plan, *shares), separators=(",", ":"))
    if args.output is None:
        print(document)
        return 0
    write_text(args.output, document + "\n")
    print(f"written: {args.output}")
    return 0


def find_forward_fraction(
    plan: Plan, profile: Profile | None, plans: str
) -> tuple[ForwardFraction, str]:
    """Find forward's share of a micro-batch's time, and its source.

    ``profile``: the plan's, if it was given; ``ValueError`` when it is not.
    """
    if profile is not None:
        part = find_part(plan, profile, plans)
        return part.forward_fraction, f"profile {profile.name}"
    for name in list_shipped():
        profile = load_shipped(name)
        if plan.expert_parallel not in profile.expert_degrees:
            continue
        of_degree = profile.at_expert_parallel(plan.expert_parallel)
        if (known := of_degree.with_digest(plan.provenance.profile)) is not None:
            return known.forward_fraction, f"profile {name}"
    return FORWARD_FRACTION, ASSUMED


def trace(
    plan: Plan, forward_fraction: ForwardFraction = FORWARD_FRACTION, source: str = ASSUMED
) -> dict[str, Any]:
    """The step as a Chrome trace document (JSON object format), times in microseconds.

    ``source``: the source of forward's share of a micro-batch's time; the document states both.
    Every pipeline takes its 1F1B simulation; pipelines that share ranks follow one another and
    micro-steps wait for each other, as in the plan. A stage is one thread, since its ranks do the
    same at the same time. The plan must be sound.
    """
    times = plan_timeline(plan, forward_fraction)
    events: list[dict[str, Any]] = []
    for index, pipeline in enumerate(plan.pipelines):
        events += _names(index, pipeline)
        events += _passes(plan, index, times.pipelines[index])
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "step": plan.step,
            "tokens": plan.tokens,
            "world_size": plan.world_size,
            "idle_ranks": list(plan.idle_ranks),
            "simulated_ms": times.simulated_ms,
            "predicted_ms": plan.predicted_ms,
            "profile": plan.provenance.profile,
            "forward_fraction": forward_fraction,
            "forward_fraction_source": source,
        },
        "traceEvents": [*events, *_micro_steps(plan, times)],
    }


def _names(index: int, pipeline: PlannedPipeline) -> Iterator[dict[str, Any]]:
    """Yield names and order of the tracks in Perfetto."""
    about = "" if pipeline.micro_step is None else f", micro-step {pipeline.micro_step}"
    label = f"pipeline {index}: {pipeline.scheme} on ranks {ranges_text(pipeline.ranks)}{about}"
    yield _metadata("process_name", index, 0, name=label)
    yield _metadata("process_sort_index", index, 0, sort_index=index)
    for stage in range(pipeline.scheme.pp):
        ranks = ranges_text(_stage_ranks(pipeline, stage))
        yield _metadata("thread_name", index, stage, name=f"stage {stage}: ranks {ranks}")
        yield _metadata("thread_sort_index", index, stage, sort_index=stage)


def _metadata(kind: str, process: int, thread: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": args}


def _passes(plan: Plan, index: int, times: PipelineTimeline) -> Iterator[dict[str, Any]]:
    """The forwards and backwards of one pipeline."""
    pipeline = plan.pipelines[index]
    last = [0] * pipeline.scheme.pp
    for event in times.events:
        # Nanoseconds, from the end of the pass before at the earliest: events of a thread must
        # not overlap by a rounding error, or a viewer would nest them.
        start = max(round(event.start_ms * 1e6), last[event.stage])
        end = max(round(event.end_ms * 1e6), start)
        last[event.stage] = end
        yield {
            "ph": "X",
            "name": f"{event.phase}{event.micro_batch}",
            "cat": PHASES[event.phase],
            "pid": index,
            "tid": event.stage,
            "ts": start / 1000,
            "dur": (end - start) / 1000,
            "args": _about(plan, pipeline, event),
        }


def _about(plan: Plan, pipeline: PlannedPipeline, event: TimedPass) -> dict[str, Any]:
    micro = pipeline.micro_batches[event.micro_batch]
    return {
        "micro_batch": event.micro_batch,
        "tokens": micro.tokens,
        "padded_tokens": micro.padded_tokens,
        "sequences": len(micro.sequences),
        "longest": max((plan.lengths[position] for position in micro.sequences), default=0),
        "cost_ms": micro.cost_ms,
        "ranks": ranges_text(_stage_ranks(pipeline, event.stage)),
    }


def _micro_steps(plan: Plan, times: PlanTimeline) -> Iterator[dict[str, Any]]:
    """Yield a mark across all tracks at the start of each micro-step."""
    starts: dict[int, float] = {}
    for pipeline, placed in zip(plan.pipelines, times.pipelines, strict=True):
        start = placed.start_ms
        if pipeline.micro_step is not None:
            starts[pipeline.micro_step] = min(start, starts.get(pipeline.micro_step, start))
    for number, start in sorted(starts.items()):
        mark = {"ph": "i", "s": "g", "name": f"micro-step {number}", "pid": 0, "tid": 0}
        yield {**mark, "ts": round(start * 1e6) / 1000}


def _stage_ranks(pipeline: PlannedPipeline, stage: int) -> tuple[int, ...]:
    width = pipeline.scheme.stage_gpus
    return pipeline.ranks[stage * width : (stage + 1) * width]
