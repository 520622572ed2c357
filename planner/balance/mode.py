"""Recomputation modes that a trainer of equal ranks can switch to."""

from __future__ import annotations

from dataclasses import dataclass

from seqplan.costs.latency import Latency
from seqplan.costs.profile import Profile
from seqplan.planner.argument_checks import check_kind, read_stage_scheme, read_whole_number
from seqplan.plans.scheme import Scheme


@dataclass(frozen=True)
class Mode:
    """A recomputation mode that a trainer can switch to between micro-batches.

    ``capacity``: tokens of a micro-batch in it; ``cost``: of a micro-batch (``Cost``).
    ``TypeError`` and ``ValueError`` for values of another kind, and for tokens below 1.
    """

    name: str
    capacity: int
    cost: Latency

    def __post_init__(self) -> None:
        check_kind("name", self.name, str, "the mode's name")
        of_mode = f"mode {self.name}: " if self.name else ""
        capacity = read_whole_number(f"{of_mode}capacity", self.capacity)
        object.__setattr__(self, "capacity", capacity)
        check_kind(f"{of_mode}cost", self.cost, Latency, "a Cost, such as Cost.from_model(…)")

    @classmethod
    def list_from_profile(
        cls,
        profile: Profile | str,
        scheme: Scheme | str,
        gpus: int,
        *,
        max_len: int = 32768,
        expert_parallel: int | None = None,
    ) -> list[Mode]:
        """List the modes of a profile on ranks of a scheme, such as ``tp2.u2``.

        ``profile``: itself, its name or file; ``gpus``: of the whole job; ``max_len``: tokens of
        the longest sequence that the model is built for; ``expert_parallel``: over how many ranks
        experts are split, by default the profile's smallest degree. ``ValueError`` for an unknown
        profile or scheme, for one of several stages, and if no mode holds a token.
        """
        known, wanted = read_stage_scheme(profile, scheme, expert_parallel)
        gpus, max_len = read_whole_number("gpus", gpus), read_whole_number("max_len", max_len)
        model = known.model(known.by_scheme[wanted], gpus, max_len)
        capacities = [
            (mode.name, model.longest(mode.max_len), mode.latency) for mode in model.modes
        ] or [(known.modes[0].name, model.max_sequence, model.latency)]
        holding = [cls(name, tokens, cost) for name, tokens, cost in capacities if tokens > 0]
        if not holding:
            raise ValueError(
                f"scheme {wanted} of {known.name} on {gpus} GPUs: no mode holds a token. "
                "Name a larger scheme"
            )
        return holding
