"""Training backends: the trainers that consume plans, and the schemes that each of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from seqplan.costs.analytic.rederive import rederive_profile
from seqplan.costs.profile import Profile
from seqplan.costs.profiled_scheme import ProfileError
from seqplan.planner.batches.batch import Batch
from seqplan.planner.cluster import Cluster
from seqplan.planner.errors import Infeasible
from seqplan.planner.proposal.static_rounds import best_static_rounds
from seqplan.planner.sync.times import SyncTimes
from seqplan.plans.scheme import Scheme

AXES = ("tp", "pp", "ulysses", "ring")


@dataclass(frozen=True, kw_only=True)
class TrainingBackend:
    """A trainer as the planner sees it.

    ``axes``: degrees of a scheme that may exceed 1; ``zero_stages``: ZeRO stages that it runs, the
    default first; ``lockstep``: ranks run their k-th micro-batches together; ``uniform``: one
    scheme on all ranks, the same at every step; ``baseline``: key of the compared system that its
    users run today, and ``baseline_name``, what they call it.
    """

    name: str
    axes: frozenset[str]
    zero_stages: tuple[int, ...]
    lockstep: bool
    uniform: bool
    baseline: str
    baseline_name: str

    def runs(self, scheme: Scheme) -> bool:
        """Return whether the backend runs ``scheme``."""
        return all(axis in self.axes or getattr(scheme, axis) == 1 for axis in AXES)

    def usable_profile(self, profile: Profile, gpus: int) -> Profile:
        """Return the profile with schemes of the backend; ``ProfileError`` if nothing is left.

        A profile of another ZeRO stage is derived anew if it is wholly of the analytic model.
        """
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
        return _restrict(profile, chosen)

    def check_without_data(self) -> None:
        """Raise ``ValueError`` if only a data set decides the backend's schemes."""
        if self.uniform:
            raise ValueError(
                f"trainer {self.name!r}: runs one scheme, which a proposal for a data set chooses. "
                "Plan from make_proposal(…, trainer=…)"
            )

    def one_scheme(
        self,
        profile: Profile,
        cluster: Cluster,
        batches: Sequence[Batch],
        longest: int,
        sync: SyncTimes | None,
        multiple: int,
    ) -> Profile:
        """Return the profile with the one scheme that is fastest on ``batches`` throughout.

        Of those that hold ``longest`` tokens; ``Infeasible`` if none does.
        """
        models = cluster.models(profile)
        found = best_static_rounds(batches, models, cluster.gpus, longest, sync, multiple)
        if found is None:
            raise Infeasible(
                f"no scheme that {self.name} runs holds the longest sequence, {longest} tokens, on "
                f"{cluster.gpus} GPUs"
            )
        ((scheme, _),) = found[0].counts
        return _restrict(profile, {scheme})


def _restrict(profile: Profile, schemes: set[Scheme]) -> Profile:
    if len(schemes) == len(profile.schemes):
        return profile
    document = {**profile.document, "schemes": profile.entries_of(schemes)}
    return Profile.from_document(document, profile.name)


_SEQPLAN = TrainingBackend(
    name="seqplan",
    axes=frozenset(AXES),
    zero_stages=(1, 2, 3),
    lockstep=False,
    uniform=False,
    baseline="static",
    baseline_name="one static strategy",
)
_VERL = replace(
    _SEQPLAN,
    name="verl-fsdp",
    axes=frozenset({"ulysses"}),
    zero_stages=(3,),
    lockstep=True,
    uniform=True,
    baseline="verl",
    baseline_name="verl's balancing",
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
        ),
        replace(
            _VERL,
            name="transformers",
            axes=frozenset(),
            baseline="trl",
            baseline_name="FSDP2 with packing",
        ),
        replace(
            _SEQPLAN,
            name="megatron",
            axes=frozenset({"tp", "pp", "ring"}),
            zero_stages=(1, 2),
            lockstep=True,
            baseline="megatron-dcp",
            baseline_name="dynamic context parallelism by Megatron's rule",
        ),
        _VERL,
        replace(
            _VERL,
            name="verl-megatron",
            axes=frozenset({"tp", "pp", "ring"}),
            zero_stages=(1, 2),
        ),
    )
}
"""Backends by the names of ``--trainer``."""


def find_backend(name: str) -> TrainingBackend:
    """Return the backend of this name; ``ValueError`` with the names for another one."""
    if name not in BACKENDS:
        raise ValueError(f"unknown trainer {name!r}; there are {', '.join(BACKENDS)}")
    return BACKENDS[name]
