"""The flow of a comparison: batches → systems → one simulation → the gain."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from seqplan.costs.profile import Profile
from seqplan.planner.argument_checks import read_whole_number
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.comparison import advice as conclusion
from seqplan.planner.comparison.coverage import Coverage, histogram
from seqplan.planner.comparison.results import Comparison, System
from seqplan.planner.comparison.survival import ERROR, Survival
from seqplan.planner.execution import ExecutionKind
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.proposal.backends import TrainingBackend, apply_backend, find_backend
from seqplan.planner.proposal.candidates import Progress
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.proposal.make_proposal import make_proposal
from seqplan.planner.proposal.uniform import find_uniform_scheme
from seqplan.planner.simulation.iteration import Execution, Iteration, simulate_iteration
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.sync.choice import derive_again
from seqplan.planner.sync.times import SyncTimes, layouts_of
from seqplan.planner.systems.deepspeed import deepspeed
from seqplan.planner.systems.flexsp import flexsp_like
from seqplan.planner.systems.hotspa import SWITCH_MS, hotspa
from seqplan.planner.systems.hydraulis import CBC_S, hydraulis
from seqplan.planner.systems.karmarkar_karp import karmarkar_karp
from seqplan.planner.systems.megatron import megatron
from seqplan.planner.systems.megatron_dcp import megatron_dcp
from seqplan.planner.systems.megatron_packing import megatron_packing
from seqplan.planner.systems.one_layout import one_layout
from seqplan.planner.systems.setting import ComparedSystem, Setting, Skipped
from seqplan.planner.systems.static_best import static_best
from seqplan.planner.systems.static_experts import SAMPLED, find_static_expert_run
from seqplan.planner.systems.trainers import trainer_rules
from seqplan.planner.workload import Workload
from seqplan.plans.extensions import list_extensions, load_extension

SYSTEMS = (
    "one-layout",
    "static",
    "megatron",
    "hotspa",
    "hydraulis",
    "deepspeed",
    "flexsp",
    "megatron-dcp",
    "verl",
    "trainers",
)
"""Systems that ours may be compared with; some come in several variants."""

MOST_STEPS = 100_000
"""Compared steps at most: all of them are in memory."""

SEVERAL_SCHEMES = ("one-layout", "hotspa", "hydraulis", "flexsp", "megatron-dcp")
"""Those whose groups differ from each other, or from step to step."""

LEAST_CBC_S = 0.1
"""With less, CBC may find no packing at all."""


def check_systems(names: Sequence[str]) -> None:
    """Raise ``ValueError`` for a system that is neither listed nor added by a package."""
    foreign = [name for name in names if name not in SYSTEMS]
    if foreign:
        added = list_extensions("seqplan.systems")
        if unknown := [name for name in foreign if name not in added]:
            there = ", ".join([*SYSTEMS, *added])
            raise ValueError(f"unknown system {unknown[0]!r}; there are {there}")


@dataclass(frozen=True)
class Options:
    """How baselines are set up.

    ``systems``: of ``SYSTEMS``, or added by installed packages; ``search_static``: search
    Megatron's configuration rather than take the published one; ``switch_ms``: HotSPa's switches of
    an iteration; ``fast``: cut the published methods short, labeled so; ``cbc_s``: CBC's limit for
    each number of micro-batches.
    """

    systems: tuple[str, ...] = SYSTEMS
    search_static: bool = False
    switch_ms: float = SWITCH_MS
    fast: bool = False
    cbc_s: float = CBC_S

    def __post_init__(self) -> None:
        check_systems(self.systems)
        if self.cbc_s < LEAST_CBC_S:
            raise ValueError(f"CBC needs at least {LEAST_CBC_S} seconds, not {self.cbc_s:g}")


def compare(
    profile: Profile,
    workload: Workload,
    lengths: npt.NDArray[np.integer],
    steps: int,
    sync: SyncTimes,
    *,
    seed: int = 0,
    options: Options | None = None,
    execution: ExecutionKind | None = None,
    micro_step_multiple: int = 1,
    trainer: str | None = None,
    robust: float = 0.0,
    proposal: Proposal | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run our plans and the baselines on the same ``steps`` batches of a data set.

    Batches are those that ``seqplan plan`` draws with the same seed. ``execution``: of our plans;
    in ``lockstep`` all systems run in lockstep, and those that cannot are left out.
    ``micro_step_multiple``: of our micro-steps, and of static strategies with our balancing;
    ``trainer``: only what it runs, next to what its users run today; see ``make_proposal``.
    ``robust``: of our plans, see ``PlanningOptions``. ``proposal``: made already for the same
    inputs. Raises ``Infeasible`` when nothing can run the
    data and ``ValueError`` for less data than a step.
    """
    chosen = options or Options()
    backend = None if trainer is None else find_backend(trainer)
    steps = read_whole_number("steps", steps, MOST_STEPS)
    profile, kind = apply_backend(profile, workload.gpus, execution, micro_step_multiple, trainer)
    report = progress or (lambda stage, done, total: None)
    sampler = Sampler(lengths, workload.tokens, workload.max_len, seed)
    if proposal is None:
        proposal = make_proposal(
            profile,
            workload,
            lengths,
            seed=seed,
            sync=sync if _weighs(sync, profile) else None,
            execution=kind,
            micro_step_multiple=micro_step_multiple,
            trainer=trainer,
            progress=progress,
        )
    batches = tuple(sampler.batches(steps))
    longest = int(sampler.lengths.max())
    lockstep = kind == "lockstep"
    of_ours = Setting(profile, workload, batches, longest, sync, lockstep, micro_step_multiple)
    if profile.expert_degrees != (1,):
        of_ours = _at_degree(of_ours, proposal.profile)
    setting = _set_up_others(of_ours, profile)
    ours = _set_up_ours(setting, proposal, seed, robust)
    others, left_out = _set_up_systems(
        _Offers(setting, proposal, chosen, seed, sampler.lengths), backend, report
    )
    coverage = Coverage.from_steps(batches, sampler, of_ours.models, workload.gpus)
    survival = Survival.start(setting, of_ours.profile, robust or ERROR)
    systems = tuple(
        _run(trainer, of_ours if trainer is ours else setting, report, survival)
        for trainer in [ours, *others]
    )
    baseline = None
    if backend is not None:
        baseline = (backend.name, backend.baseline_name, backend.baseline)
    note = conclusion.note_other_trainer(systems, baseline)
    return Comparison(
        profile=profile.name,
        hardware=profile.hardware,
        gpus=workload.gpus,
        max_len=workload.max_len,
        tokens=workload.tokens,
        seed=seed,
        sequences=len(lengths),
        histogram=histogram(sampler.lengths),
        systems=systems,
        left_out=tuple(left_out),
        advice=f"{conclusion.advice(profile, systems, workload.max_len, coverage)} {note}".strip(),
        pays=conclusion.judge_gain(profile, systems, coverage).pays,
        coverage=coverage,
        survival=survival.list_gains(),
        survival_error=robust or ERROR,
        assumptions=(
            *_list_assumptions(setting, of_ours, sampler.truncated),
            *(() if coverage.is_sufficient else (coverage.sentences,)),
        ),
        optimizer_shards=workload.optimizer_shards,
        include_flagged=workload.include_flagged,
        baseline=baseline,
    )


SPLIT_EXPERTS = ("static", "megatron", "verl", "trainers")
"""Systems that are compared with experts on several ranks."""


def _at_degree(setting: Setting, profile: Profile) -> Setting:
    """Return the setting with a profile of one degree of expert parallelism, and its sync."""
    sync = derive_again(setting.sync, profile, setting.workload.gpus)
    return replace(setting, profile=profile, sync=sync)


def _set_up_others(setting: Setting, profile: Profile) -> Setting:
    """Return the setting of other systems, with one recomputation mode.

    Of a ``profile`` with several degrees of expert parallelism it is the one with which a static
    run is fastest; ``setting`` is ours.
    """
    best = None
    if profile.expert_degrees != (1,):
        best = find_static_expert_run(
            profile,
            setting.workload,
            setting.batches[:SAMPLED],
            setting.longest,
            setting.sync,
            lockstep=setting.lockstep,
        )
    if best is None or max(best.profile.expert_parallel, setting.expert_parallel) == 1:
        return replace(setting, profile=_keep_best_mode(setting))
    chosen = profile.at_expert_parallel(best.profile.expert_parallel)
    modes = {mode.name for mode in best.profile.modes}
    return replace(_at_degree(setting, chosen.keep_modes(modes)), static_experts=best)


def _weighs(sync: SyncTimes, profile: Profile) -> bool:
    """Whether the sync takes time in some layout of the profile."""
    layouts = layouts_of(entry.scheme for entry in profile.schemes)
    return any(family.sync_ms > 0 for family in sync.families(layouts))


def _list_assumptions(setting: Setting, ours: Setting, truncated: int) -> tuple[str, ...]:
    """List the assumptions of a comparison in the ``setting`` of other systems."""
    profile = ours.profile
    listed = conclusion.assumptions(
        profile,
        ours.sync,
        truncated,
        setting.workload,
        lockstep=setting.in_lockstep,
        micro_step_multiple=setting.micro_step_multiple,
        mode_of_others=None if len(profile.modes) == 1 else setting.profile.modes[0].name,
    )
    if setting.static_experts is None:
        return listed
    experts = (
        f"Experts are on {ours.expert_parallel} ranks in our plans, and on "
        f"{setting.expert_parallel} in the other systems, with which one static scheme is fastest; "
        "pipeline stages are of whole blocks of these ranks in all of them."
    )
    return (*listed, experts)


def _set_up_ours(setting: Setting, proposal: Proposal, seed: int, robust: float) -> ComparedSystem:
    """Set up our plans, with the close bound in lockstep."""
    planner = StepPlanner(proposal, PlanningOptions(seed=seed, prove_lockstep=True, robust=robust))
    return ComparedSystem(
        "ours",
        "seqplan",
        "micro-steps of groups planned anew at every step"
        if setting.in_lockstep
        else "candidate strategies for the data set, the best planned anew at every step",
        True,
        lambda batch: Execution.from_plan(planner.plan(batch)),
    )


@dataclass(frozen=True)
class _Offers:
    """Sets systems up by name."""

    setting: Setting
    proposal: Proposal
    options: Options
    seed: int
    lengths: npt.NDArray[np.int64]

    def list_wanted(self) -> list[str]:
        """List the systems of the options: ours in their order, then those of packages."""
        chosen = self.options.systems
        return [name for name in SYSTEMS if name in chosen] + sorted(set(chosen) - set(SYSTEMS))

    def set_up(self, name: str) -> Iterable[ComparedSystem | Skipped]:
        """Set up the variants of a system."""
        setting, options = self.setting, self.options
        offers: dict[str, Callable[[], Iterable[ComparedSystem | Skipped]]] = {
            "one-layout": lambda: one_layout(setting, self.proposal, self.seed),
            "static": lambda: static_best(
                setting, [candidate.strategy for candidate in self.proposal.candidates]
            ),
            "megatron": lambda: megatron(setting, search=options.search_static),
            "hotspa": lambda: hotspa(setting, switch_ms=options.switch_ms),
            "hydraulis": lambda: hydraulis(
                setting, self.lengths, fast=options.fast, cbc_s=options.cbc_s
            ),
            "deepspeed": lambda: deepspeed(setting),
            "flexsp": lambda: flexsp_like(setting),
            "verl": lambda: karmarkar_karp(setting),
            "trainers": lambda: trainer_rules(setting),
            "megatron-dcp": lambda: [*megatron_dcp(setting), *megatron_packing(setting)],
        }
        if setting.static_experts is not None and name not in SPLIT_EXPERTS:
            return [Skipped(name, name, "not modeled with experts on several ranks")]
        return offers[name]() if name in offers else _set_up_extension(name, setting)


def _set_up_systems(
    offers: _Offers, backend: TrainingBackend | None, report: Progress
) -> tuple[list[ComparedSystem], list[tuple[str, str]]]:
    """Set up the other systems; those left out with the reason."""
    systems, left_out = [], []
    wanted = offers.list_wanted()
    for done, name in enumerate(wanted):
        report("setting systems up", done, len(wanted))
        for offer in offers.set_up(name):
            if isinstance(offer, Skipped):
                left_out.append((offer.name, offer.why))
            elif backend is not None and backend.uniform and name in SEVERAL_SCHEMES:
                left_out.append(
                    (offer.name, f"its groups differ, and {backend.name} has equal ones")
                )
            elif backend is not None and backend.uniform and offer.balanced:
                left_out.append((offer.name, f"plans for {backend.name} are just that"))
            else:
                systems.append(offer)
    return systems, left_out


def _keep_best_mode(setting: Setting) -> Profile:
    """Return the profile with the one recomputation mode of the fastest static scheme.

    Other systems have one mode throughout. The last mode if none holds the longest sequence.
    """
    profile = setting.profile
    if len(profile.modes) == 1:
        return profile
    best: tuple[float, Profile] | None = None
    for mode in profile.modes:
        of_mode = profile.keep_modes({mode.name})
        fastest = find_uniform_scheme(
            of_mode,
            setting.workload,
            setting.batches[:SAMPLED],
            setting.longest,
            setting.sync,
            lockstep=setting.in_lockstep,
        )
        if fastest is not None and (best is None or fastest[1] < best[0]):
            best = fastest[1], of_mode
    return of_mode if best is None else best[1]


def _set_up_extension(name: str, setting: Setting) -> list[ComparedSystem | Skipped]:
    """Set up systems of an installed package; ``ValueError`` for what it must not return."""
    set_up = load_extension("seqplan.systems", name)
    offers = [] if set_up is None else set_up(setting)
    if not all(isinstance(offer, ComparedSystem | Skipped) for offer in offers):
        raise ValueError(f"system {name!r}: its entry point must return ComparedSystem or Skipped")
    return list(offers)


def _run(
    trainer: ComparedSystem,
    setting: Setting,
    report: Progress,
    survival: Survival,
) -> System:
    """Simulate every step of one system. Planning is timed for ours alone."""
    iterations: list[Iteration] = []
    for done, batch in enumerate(setting.batches):
        report(trainer.name, done, len(setting.batches))
        iteration, execution = _step(trainer, batch, setting)
        iterations.append(iteration)
        survival.add(trainer.key, batch, execution, iteration)
    report(trainer.name, len(setting.batches), len(setting.batches))
    static = None if trainer.static is None else str(trainer.static)
    return System(
        trainer.key, trainer.name, trainer.description, trainer.balanced, tuple(iterations), static
    )


def _step(trainer: ComparedSystem, batch: Batch, setting: Setting) -> tuple[Iteration, Execution]:
    start = time.perf_counter()
    execution = trainer.step(batch)
    ours = trainer.key == "ours"
    took = (time.perf_counter() - start) * 1000
    gap = execution.gap if ours else None
    execution = replace(
        execution,
        gap=gap,
        planning_ms=took if ours else None,
        expert_parallel=setting.expert_parallel,
    )
    gpus, sync = setting.workload.gpus, setting.sync
    return simulate_iteration(batch, execution, setting.profile, gpus, sync), execution
