"""Recomputation modes that a trainer of equal ranks can switch to."""

from __future__ import annotations

from dataclasses import dataclass

from seqplan.costs.latency import Latency
from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import find_profile
from seqplan.plans.scheme import Scheme


@dataclass(frozen=True)
class Mode:
    """A recomputation mode that a trainer can switch to between micro-batches.

    ``capacity``: tokens of a micro-batch in it; ``cost``: of a micro-batch (``Cost``).
    """

    name: str
    capacity: int
    cost: Latency

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
        known = find_profile(profile) if isinstance(profile, str) else profile
        known = known.at_expert_parallel(expert_parallel or known.expert_degrees[0])
        wanted = Scheme.parse(scheme) if isinstance(scheme, str) else scheme
        if wanted.pp > 1:
            raise ValueError(f"scheme {wanted}: has stages. Name one of ranks without")
        if wanted not in known.by_scheme:
            some = ", ".join(str(other) for other in list(known.by_scheme)[:8])
            raise ValueError(f"profile {known.name} has no scheme {wanted}. It has {some}, …")
        model = known.model(known.by_scheme[wanted], gpus, max_len)
        modes = [
            cls(mode.name, model.longest(mode.max_len), mode.latency) for mode in model.modes
        ] or [cls(known.modes[0].name, model.max_sequence, model.latency)]
        holding = [mode for mode in modes if mode.capacity > 0]
        if not holding:
            raise ValueError(
                f"scheme {wanted} of {known.name} on {gpus} GPUs: no mode holds a token. "
                "Name a larger scheme"
            )
        return holding
