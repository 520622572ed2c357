"""Training backends: the trainers that consume plans, and the schemes that each of them runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from seqplan.costs.analytic.rederive import rederive_profile
from seqplan.costs.profile import Profile
from seqplan.costs.profiled_scheme import ProfileError
from seqplan.planner.errors import OptionError
from seqplan.planner.execution import EXECUTIONS, ExecutionKind, choose_execution
from seqplan.plans.extensions import list_extensions, load_extension
from seqplan.plans.recomputation import MODES
from seqplan.plans.scheme import Scheme

AXES = ("tp", "pp", "ulysses", "ring")


@dataclass(frozen=True, kw_only=True)
class TrainingBackend:
    """A trainer as the planner sees it.

    ``axes``: degrees of a scheme that may exceed 1; ``zero_stages``: ZeRO stages that it runs, the
    default first; ``executions``: kinds of execution that it runs, the default first; ``uniform``:
    one scheme on all ranks, the same at every step, in any of them; ``baseline``: key of the
    compared system that its users run today, and ``baseline_name``, what they call it; ``systems``:
    keys of others that it runs, next to static strategies. ``modes``:
    recomputation modes that it switches between micro-batches; ``loss``: how it computes the loss;
    ``stack``: rates and launches of its software in derived profiles. ``splits_experts``: runs
    plans whose experts are on several ranks; ``collectives``: syncs equal replicas by them.
    """

    name: str
    axes: frozenset[str]
    zero_stages: tuple[int, ...]
    executions: tuple[ExecutionKind, ...]
    uniform: bool
    baseline: str
    baseline_name: str
    systems: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("none", "full")
    loss: str = "whole"
    stack: str = "compiled"
    splits_experts: bool = False
    collectives: bool = False

    def runs(self, scheme: Scheme) -> bool:
        """Return whether the backend runs ``scheme``."""
        return all(axis in self.axes or getattr(scheme, axis) == 1 for axis in AXES)

    def usable_profile(self, profile: Profile, gpus: int) -> Profile:
        """Return the profile with schemes and recomputation modes of the backend.

        ``ProfileError`` if nothing is left.

        A profile of another ZeRO stage is derived anew if it is wholly of the analytic model.
        """
        if not self.splits_experts and profile.expert_degrees != (1,):
            if 1 not in profile.expert_degrees:
                degrees = ", ".join(map(str, profile.expert_degrees))
                raise ProfileError(
                    f"profile {profile.name}: its experts are on {degrees} ranks, and {self.name} "
                    "keeps them whole. Derive a profile with --expert-parallel 1"
                )
            profile = profile.at_expert_parallel(1)
        if len(profile.modes) > 1:
            profile = profile.keep_modes(self.modes)
        if profile.zero_stage not in self.zero_stages:
            stages = " or ".join(f"ZeRO-{stage}" for stage in self.zero_stages)
            anew = rederive_profile(profile, self.zero_stages[0], gpus, self.runs)
            if anew is None:
                raise ProfileError(
                    f"profile {profile.name}: is of ZeRO-{profile.zero_stage}, but {self.name} "
                    f"runs {stages}. Measure or derive a profile of ZeRO-{self.zero_stages[0]}"
                )
            return anew
        chosen = {entry.scheme for entry in profile.schemes if self.runs(entry.scheme)}
        if not chosen:
            axes = " and ".join(axis for axis in AXES if axis in self.axes) or "data parallelism"
            raise ProfileError(
                f"profile {profile.name}: has no scheme that {self.name} runs (only {axes}). Take "
                "a profile that has one"
            )
        return profile.keep_schemes(chosen)

    def check_without_data(self) -> None:
        """Raise ``ValueError`` if only a data set decides the backend's schemes."""
        if self.uniform:
            raise OptionError(
                "{0} {name!r} runs one scheme, which a proposal for a data set chooses. Plan from "
                "make_proposal(…, trainer=…)",
                "trainer",
                name=self.name,
            )


_SEQPLAN = TrainingBackend(
    name="seqplan",
    axes=frozenset(AXES),
    zero_stages=(1, 2, 3),
    executions=("regroup", "static", "uniform", "lockstep"),
    uniform=False,
    baseline="static",
    baseline_name="one static strategy",
    modes=MODES,
    loss="chunked",
    splits_experts=True,
)
_VERL = replace(
    _SEQPLAN,
    name="verl-fsdp",
    axes=frozenset({"ulysses"}),
    zero_stages=(3,),
    executions=("lockstep", "uniform"),
    uniform=True,
    baseline="verl",
    baseline_name="verl's balancing",
    modes=("none", "full"),
    loss="whole",
    stack="eager",
    splits_experts=False,
)

BACKENDS = {
    backend.name: backend
    for backend in (
        _SEQPLAN,
        replace(
            _SEQPLAN,
            name="seqplan-huggingface",
            axes=frozenset({"ulysses", "ring"}),
            zero_stages=(1, 2),
            baseline="trl",
            baseline_name="FSDP2 with packing",
            systems=("rebalance",),
        ),
        replace(
            _VERL,
            name="transformers",
            axes=frozenset(),
            baseline="trl",
            baseline_name="FSDP2 with packing",
            systems=("rebalance",),
        ),
        replace(
            _SEQPLAN,
            name="megatron",
            axes=frozenset({"tp", "pp", "ring"}),
            zero_stages=(1, 2),
            executions=("lockstep", "uniform"),
            modes=("none", "attention_core", "full"),
            loss="whole",
            stack="megatron",
            collectives=True,
            baseline="megatron-dcp",
            baseline_name="dynamic context parallelism by Megatron's rule",
            systems=("megatron", "megatron-packing"),
        ),
        _VERL,
        replace(
            _VERL,
            name="verl-megatron",
            stack="megatron",
            collectives=True,
            splits_experts=True,
            axes=frozenset({"tp", "pp", "ring"}),
            zero_stages=(1, 2),
            executions=("lockstep",),
            systems=("megatron",),
        ),
    )
}
"""Backends by the names of ``--trainer``."""


def find_backend(name: str) -> TrainingBackend:
    """Return the backend of this name, listed here or added by an installed package.

    ``OptionError`` with the names for another one.
    """
    if isinstance(name, str) and name in BACKENDS:
        return BACKENDS[name]
    added = load_extension("seqplan.trainers", name)
    if isinstance(added, TrainingBackend):
        return added
    if added is not None:
        raise OptionError(
            "{0} {name!r}: its entry point must be a TrainingBackend: {added!r:.60}",
            "trainer",
            name=name,
            added=added,
        )
    raise OptionError(
        "{0} must be one of {names}: {name!r}",
        "trainer",
        names=", ".join([*BACKENDS, *list_extensions("seqplan.trainers")]),
        name=name,
    )


def uses_collectives(trainer: str | None) -> bool:
    """Return whether a trainer syncs any layout by collectives, not messages as this runtime."""
    return trainer is not None and find_backend(trainer).collectives


def apply_backend(
    profile: Profile,
    gpus: int,
    execution: str | None,
    micro_step_multiple: int,
    trainer: str | None,
) -> tuple[Profile, ExecutionKind]:
    """Return the profile that a trainer runs on ``gpus`` GPUs, and its kind of execution.

    Without a trainer the profile itself. ``OptionError`` as ``choose_execution``.
    """
    backend = None if trainer is None else find_backend(trainer)
    if backend is not None:
        profile = backend.usable_profile(profile, gpus)
    kind = choose_execution(
        execution,
        profile,
        micro_step_multiple,
        trainer=trainer,
        supported=EXECUTIONS if backend is None else backend.executions,
    )
    return profile, kind
