"""Latency and memory of micro-batches: profiles of models, measured or derived, and lengths.

``profile`` defines the file that all others make or use; ``latency``, ``memory`` and
``scheme_model`` evaluate it for a scheme. Profiles come from ``fit`` (measurements), ``analytic``
(data sheets) or ``shipped``; ``lengths`` reads the sequence lengths of data sets.

The names a user needs are loaded on first use: importing the package loads nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.costs.latency import Latency
    from seqplan.costs.memory import Memory
    from seqplan.costs.model_sizes import ModelShape, ModelSizes
    from seqplan.costs.profile import Profile
    from seqplan.costs.profiled_scheme import ProfiledScheme, ProfileError
    from seqplan.costs.scheme_model import SchemeModel
    from seqplan.costs.shipped.catalogue import find_profile, list_shipped

_HOMES = {
    "latency": ("Latency",),
    "memory": ("Memory",),
    "model_sizes": ("ModelShape", "ModelSizes"),
    "profile": ("Profile",),
    "profiled_scheme": ("ProfileError", "ProfiledScheme"),
    "scheme_model": ("SchemeModel",),
    "shipped.catalogue": ("find_profile", "list_shipped"),
}

__all__ = [
    "Latency",
    "Memory",
    "ModelShape",
    "ModelSizes",
    "Profile",
    "ProfileError",
    "ProfiledScheme",
    "SchemeModel",
    "find_profile",
    "list_shipped",
]


__getattr__ = lazy_names(__name__, _HOMES)
