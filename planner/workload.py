"""The GPUs, context and tokens a step that plans are made for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from seqplan.costs.profile import Profile
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.argument_checks import read_whole_number
from seqplan.plans.format.fields import MAX_INTEGER
from seqplan.plans.scheme import Scheme

TOKENS_PER_GPU = 3125
"""Tokens of a step per GPU by default: 200K on 64 GPUs, as published."""

MOST_GPUS = 65_536
"""GPUs of a cluster at most: more than a training run has had, and few enough that the records of
each rank (a step it has done, its view of a plan) stay within megabytes."""


MOST_LOOK_AHEAD = 1024
"""Steps of a job planned beyond its slowest rank, at most."""


@dataclass(frozen=True)
class Workload:
    """GPUs, longest sequence and tokens of a step, as planning needs them."""

    gpus: int
    max_len: int
    tokens: int
    include_flagged: bool = False
    optimizer_shards: int | None = None

    def __post_init__(self) -> None:
        for name, most in (("gpus", MOST_GPUS), ("max_len", MAX_INTEGER), ("tokens", MAX_INTEGER)):
            object.__setattr__(self, name, read_whole_number(name, getattr(self, name), most))
        if type(self.include_flagged) is not bool:
            raise ValueError(f"include_flagged must be true or false, not {self.include_flagged!r}")
        shards = self.optimizer_shards
        if shards is not None and (type(shards) is not int or not 1 <= shards <= self.gpus):
            raise ValueError(
                f"optimizer_shards must be an integer from 1 to the {self.gpus} GPUs, "
                f"not {shards!r}"
            )

    def leave_out(self, number: int) -> Workload:
        """Return the workload on so many GPUs fewer, which then hold all of the optimizer."""
        gpus, shards = self.gpus - number, self.optimizer_shards
        left = None if shards is None else min(shards, gpus)
        return replace(self, gpus=gpus, optimizer_shards=left)

    def models(self, profile: Profile) -> dict[Scheme, SchemeModel]:
        """Return the models of the profile's schemes that fit this cluster, in scheme order.

        With experts on E ranks, a stage of several has to consist of whole blocks of E.
        """
        degree = profile.expert_parallel
        if self.gpus % degree:
            return {}
        usable = profile.usable(
            self.gpus,
            self.max_len,
            optimizer_shards=self.optimizer_shards,
            include_flagged=self.include_flagged,
        )
        return {
            model.scheme: model
            for model in usable
            if model.scheme.pp == 1 or model.scheme.stage_gpus % degree == 0
        }

    def list_whole_blocks(self, profile: Profile) -> dict[Scheme, SchemeModel]:
        """Return those of the models whose stages consist of whole blocks of experts."""
        degree = profile.expert_parallel
        return {s: m for s, m in self.models(profile).items() if s.stage_gpus % degree == 0}
