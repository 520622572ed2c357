"""Cost terms of the analytic model that installed packages add, by entry points."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.costs.analytic.deployment import CostTerm
from seqplan.plans.extensions import list_extensions, load_extension


def load_cost_terms(names: Sequence[str]) -> tuple[CostTerm, ...]:
    """Load cost terms of installed packages. ``ValueError`` for unknown or repeated names."""
    terms = []
    for name in names:
        term = load_extension("seqplan.cost_terms", name)
        if term is None:
            there = ", ".join(list_extensions("seqplan.cost_terms")) or "none"
            raise ValueError(f"unknown cost term: {name!r}. Installed packages add: {there}")
        if not isinstance(term, CostTerm) or term.name != name:
            raise ValueError(
                f"cost term {name!r}: its entry point must be a CostTerm of this name. "
                "Repair the package"
            )
        terms.append(term)
    if len(set(names)) < len(names):
        raise ValueError(f"cost terms {','.join(names)}: a name is repeated. Name each once")
    return tuple(terms)
