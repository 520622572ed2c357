"""Numbers, lists, profiles and schemes that callers give, of Python or NumPy."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from operator import index

from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import find_profile
from seqplan.planner.errors import OptionError
from seqplan.plans.format.fields import MAX_INTEGER
from seqplan.plans.scheme import Scheme


def read_whole_number(name: str, value: object, most: int = MAX_INTEGER) -> int:
    """Return a number from 1 to ``most`` as an int; ``ValueError`` for another, or a boolean."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number of 1 or more, not {value!r}")
    if int(value) > most:
        raise ValueError(f"{name} must be {most} or fewer, not {value}")
    return int(value)


def read_integer(name: str, value: object) -> int:
    """Return a whole number of any sign as an int; ``ValueError`` for another, or a boolean."""
    try:
        return index(value if not isinstance(value, bool) else None)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{name} must be a whole number, not {value!r}") from None


def read_seed(value: object) -> int:
    """Return a seed as an int that plans can state; ``OptionError`` for another value."""
    whole = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else -1
    if not 0 <= whole <= MAX_INTEGER:
        raise OptionError(
            "{0} must be a whole number of 0 or more, below 2**63: {value!r}", "seed", value=value
        )
    return whole


def check_kind(name: str, value: object, kind: type, fix: str) -> None:
    """Check that ``value`` is of a kind; ``TypeError`` states the ``fix``."""
    if not isinstance(value, kind):
        raise TypeError(f"{name}: {value!r:.60}. Give {fix}")


def read_profile(profile: object) -> Profile:
    """Return a profile, loaded if its name or file is given; ``TypeError`` for another value."""
    if isinstance(profile, str):
        profile = find_profile(profile)
    if not isinstance(profile, Profile):
        raise TypeError(f"profile: {profile!r:.60}. Give a profile, its name or its file")
    return profile


def read_stage_scheme(
    profile: Profile | str, scheme: Scheme | str, expert_parallel: int | None
) -> tuple[Profile, Scheme]:
    """Return a profile at one degree of expert parallelism, and its scheme of one stage.

    ``expert_parallel``: by default the profile's smallest degree. ``TypeError`` for values of
    another kind; ``ValueError`` for an unknown profile or scheme, and for stages.
    """
    known = read_profile(profile)
    degree = known.expert_degrees[0] if expert_parallel is None else expert_parallel
    known = known.at_expert_parallel(degree)
    wanted = Scheme.parse(scheme) if isinstance(scheme, str) else scheme
    check_kind("scheme", wanted, Scheme, "a scheme, such as 'tp2.u2'")
    if wanted.pp > 1:
        raise ValueError(f"scheme {wanted}: has stages. Name one of ranks without")
    if wanted not in known.by_scheme:
        some = ", ".join(str(other) for other in list(known.by_scheme)[:8])
        raise ValueError(f"profile {known.name} has no scheme {wanted}. It has {some}, …")
    return known, wanted


def check_list(name: str, value: object, entries: str) -> None:
    """Check that ``value`` lists something; ``TypeError`` names the ``entries`` to give.

    A set has no order, by which entries belong to sequences or ranks.
    """
    unordered = isinstance(value, str | bytes | dict | set | frozenset)
    if unordered or not isinstance(value, Iterable):
        raise TypeError(f"{name}: {value!r:.60}. Give a list of {entries}")
