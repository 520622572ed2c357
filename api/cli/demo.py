"""``seqplan demo``: from the lengths of real files to checked plans, in one go."""

from __future__ import annotations

import argparse
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqplan.api.check_training.check import CheckRequest, first_plans
from seqplan.api.check_training.processes import RankServer, rank_server
from seqplan.api.cli.check.check_training import print_check
from seqplan.api.cli.framework.extras import RUNTIME, lacks_torch
from seqplan.api.cli.framework.options import add_option
from seqplan.api.cli.framework.output import ProgressBar, create_folder, seconds, table
from seqplan.api.cli.parts.planned_steps import StepRow, summary_lines, write_steps
from seqplan.api.cli.profile.show_profile import scheme_notes, scheme_rows, scheme_table
from seqplan.api.cli.propose import proposal_lines
from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.lengths import histogram_lines, read_lengths, summarise
from seqplan.costs.model_files.listed_models import MODELS
from seqplan.costs.model_sizes import ModelSizes
from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import find_profile
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.placement.assembly import assemble
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.proposal.make_proposal import make_proposal
from seqplan.planner.simulation.timeline import simulate_plan_ms
from seqplan.planner.step.selection import select
from seqplan.planner.strategies.homogeneous import best_homogeneous
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.workers.produce import produce
from seqplan.planner.workload import Workload
from seqplan.plans.format.atomic_file import atomic_write, write_text
from seqplan.plans.format.codec import to_json
from seqplan.plans.percent import percent, wrap_text
from seqplan.plans.plan import Plan, Provenance
from seqplan.plans.scheme import Strategy
from seqplan.plans.version import VERSION

DATA = resources.files("seqplan.costs") / "example_data"
"""Lengths and a profile that ship with the package."""

PROFILE, CLUSTER, STEPS, SEED = "llama-32b-a800-80gb", Workload(64, 32768, 200_000), 20, 0

SMALL_WORKLOAD, SMALL_STEPS, SMALL_SEED = Workload(4, 4096, 12_000), 4, 5
"""Executed on this machine: few tokens, and batches whose strategies differ from step to step."""

DESCRIPTION = f"""\
Plan {STEPS} steps of training {PROFILE} on {CLUSTER.gpus} GPUs with real lengths: the tokens of
32,514 source files. Shows every stage and writes the proposal and the plans. Then a few small
steps are planned for processes of this machine, which execute them: losses and parameters must be
those of one process. At the end tensor, pipeline, Ulysses and ring parallelism run side by side in
one step.
"""

EXAMPLES = """\
example:
  seqplan demo --lengths lengths.npy -o out
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(add_option, parser)
    add(
        "--lengths FILE",
        type=str,
        default=str(DATA / "code.npy"),
        help="default: lengths that ship with seqplan",
    )
    add(
        "--cpu-profile FILE",
        type=str,
        default=str(DATA / "llama-small-cpu.json"),
        help="of the small model that is executed; default: one that ships with seqplan",
    )
    add("-o --output FOLDER", default=Path("out"), help="default out")


def run(args: argparse.Namespace) -> int:
    """Run the command; 1 if the execution differs from one process, which is a bug.

    ``ValueError`` when the lengths or the profiles are not there.
    """
    profile, small = find_profile(PROFILE), find_profile(args.cpu_profile)
    lengths = read_lengths([args.lengths]).values
    with create_folder(args.output):
        return _run(args, profile, small, lengths)


def _run(
    args: argparse.Namespace, profile: Profile, small: Profile, lengths: npt.NDArray[np.int64]
) -> int:
    _title(f"1. Lengths: {len(lengths):,} sequences, {int(lengths.sum()):,} tokens")
    print("\n".join(histogram_lines(summarise(lengths), width=98)))

    _title(f"2. Schemes of {profile.name} on {CLUSTER.gpus} × {profile.hardware}")
    measured = profile.restrict(measured=True)
    rows_of_schemes = scheme_rows(measured, CLUSTER.gpus, CLUSTER.max_len)
    print("\n".join(scheme_table(rows_of_schemes, CLUSTER.gpus)))
    print("\n".join(scheme_notes(measured)))
    more = len(profile.schemes) - len(measured.schemes)
    print(f"and {more} derived from these: with Ulysses and ring (seqplan profile show)")

    _title(f"3. Proposal: {CLUSTER.tokens:,} tokens a step, context {CLUSTER.max_len:,}")
    with ProgressBar() as progress:
        sync = choose_sync(profile, CLUSTER.gpus)
        proposal = make_proposal(profile, CLUSTER, lengths, seed=SEED, sync=sync, progress=progress)
    print("\n".join(proposal_lines(proposal)))

    _title(f"4. {STEPS} steps, planned and checked")
    sampler = Sampler(lengths, CLUSTER.tokens, CLUSTER.max_len, SEED)
    batches = list(sampler.batches(STEPS))
    plans = args.output / "plans.jsonl"
    with atomic_write(plans, "w") as file:
        rows = write_steps(proposal, batches, PlanningOptions(seed=SEED), file, steps=STEPS)
    print("\n".join(step_table(rows)))
    print()
    print("\n".join(summary_lines(rows, sampler.truncated)))

    _title("5. Against the best homogeneous strategy, planned with the same machinery")
    models = CLUSTER.models(profile)
    longest = int(sampler.lengths.max())
    if static := best_homogeneous(batches, models, CLUSTER.gpus, sync, longest):
        strategy, times = static
        theirs = sum(times) / len(times) + sync.of_strategy_ms(strategy)
        whole = [row.plan.predicted_ms + (row.plan.sync_ms or 0.0) for row in rows]
        ours = sum(whole) / len(whole)
        lines = (
            f"{strategy}: {seconds(theirs)} an iteration; these plans: {seconds(ours)}: "
            f"{theirs / ours:.2f} times as fast (predicted on profile {profile.name}, with the "
            "sync of parameters and gradients)"
        )
        print("\n".join(wrap_text(lines, 98)))
    write_text(args.output / "proposal.json", proposal.to_json())
    print(f"\nwritten: {plans} and {args.output / 'proposal.json'}")
    agrees = True
    if lacks_torch():
        _title("6. Not executed")
        print(f"Executing plans needs {RUNTIME}")
    else:
        with rank_server() as server:  # which imports torch while the first plans are made
            agrees = execute_small(small, lengths, args.output / "small-plans.jsonl", server)
            agrees &= execute_every_kind(lengths, args.output / "every-kind.jsonl", server)
    print(f"next: seqplan explain {plans} --step 3 (in the repository: ./run seqplan explain …)")
    return 0 if agrees else 1


def execute_small(
    profile: Profile, lengths: npt.NDArray[np.integer], path: Path, server: RankServer
) -> bool:
    """Plan a few steps into ``path`` and run them on real ranks; whether losses agree."""
    workload = SMALL_WORKLOAD
    _title(f"6. Executed: {SMALL_STEPS} steps on {workload.gpus} processes, against one process")
    with ProgressBar() as progress:
        proposal = make_proposal(
            profile, workload, lengths, seed=SMALL_SEED, sync=None, progress=progress
        )
    sampler = Sampler(lengths, workload.tokens, workload.max_len, SMALL_SEED)
    with atomic_write(path) as file:
        options = PlanningOptions(seed=SMALL_SEED)
        for planned in produce(proposal, sampler.batches(SMALL_STEPS), options=options):
            file.write(planned.line + "\n")
    plans = first_plans(path, workload.gpus, SMALL_STEPS)
    return _execute(plans, profile, path, server)


def _execute(plans: list[Plan], profile: Profile, path: Path, server: RankServer) -> bool:
    check = print_check(CheckRequest(plans, None, SMALL_SEED, "float32"), server, profile)
    print(f"\nwritten: {path}")
    return check.agrees


def execute_every_kind(lengths: npt.NDArray[np.integer], path: Path, server: RankServer) -> bool:
    """Run one step of all kinds of parallelism side by side; whether it is that of one process."""
    _title(f"7. Executed: {EVERY_KIND} in one step on {GPUS} processes, against one process")
    profile = derive_small_profile()
    sampler = Sampler(lengths, SMALL_WORKLOAD.tokens, SMALL_WORKLOAD.max_len, SMALL_SEED)
    (batch,) = sampler.batches(1)
    plan = plan_every_kind(batch, profile, SMALL_SEED, SMALL_WORKLOAD.max_len)
    write_text(path, to_json(plan) + "\n")
    return _execute([plan], profile, path, server)


def step_table(rows: list[StepRow]) -> list[str]:
    """One line a step."""
    return table(
        ("step", "seqs", "longest", "predicted", "simulated", "gap", "planning", "  strategy"),
        [
            (
                str(row.plan.step),
                str(len(row.plan.lengths)),
                f"{max(row.plan.lengths):,}",
                f"{row.plan.predicted_ms:,.0f} ms",
                f"{simulate_plan_ms(row.plan):,.0f} ms",
                percent(row.plan.gap, 2),
                f"{row.planning_ms:.1f} ms",
                "  " + row.plan.strategy_text,
            )
            for row in rows
        ],
        left=0,
    )


def _title(text: str) -> None:
    print(f"\n{text}\n{'═' * len(text)}", flush=True)


EVERY_KIND = Strategy.parse("1×tp2.pp2 + 1×u2.r2")
GPUS = EVERY_KIND.gpus
MODEL, DEVICE = "small", "h100-80gb"


def derive_small_profile() -> Profile:
    """Derive a small model's profile with the schemes of ``EVERY_KIND``; nothing is measured."""
    cluster = ClusterHardware(DEVICES[DEVICE], 1, GPUS)
    document = derive_profile(
        Deployment(cluster=cluster, sizes=ModelSizes.from_mapping(MODELS[MODEL])),
        [scheme for scheme, _ in EVERY_KIND.counts],
        name=f"{MODEL}-{DEVICE}-derived",
    )
    return Profile.from_document(document, "the derived profile")


def plan_every_kind(batch: Batch, profile: Profile, seed: int, max_len: int) -> Plan:
    """Dispatch and pack ``batch`` on ``EVERY_KIND``; ``Infeasible`` without room for one."""
    workload = Workload(GPUS, max_len, sum(batch.lengths))
    selected = select(batch, [EVERY_KIND], workload.models(profile), GPUS, tailor=False)
    return assemble(
        batch,
        selected,
        Provenance(VERSION, seed, profile.digest, None),
        GPUS,
        forward_fraction=profile.forward_fraction,
    )
