"""What devices take for micro-batches: profiles of models, measured or derived, and lengths.

Read ``profile`` first, the file that all others make or use; then ``latency``, ``memory`` and
``scheme_model``, what it says of a scheme. Profiles come from ``measure`` and ``fit`` (devices),
``analytic`` (data sheets) or ``shipped``; ``lengths`` reads the sequence lengths of data sets.

The names a user needs, loaded on first use, so that importing the package loads nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_face import lazy_names

if TYPE_CHECKING:
    from seqplan.profiler.latency import Latency
    from seqplan.profiler.memory import Memory
    from seqplan.profiler.model_sizes import ModelShape, ModelSizes
    from seqplan.profiler.profile import Profile, ProfiledScheme, ProfileError
    from seqplan.profiler.scheme_model import SchemeModel
    from seqplan.profiler.shipped.catalogue import find_profile, shipped_names

_HOMES = {
    "latency": ("Latency",),
    "memory": ("Memory",),
    "model_sizes": ("ModelShape", "ModelSizes"),
    "profile": ("Profile", "ProfileError", "ProfiledScheme"),
    "scheme_model": ("SchemeModel",),
    "shipped.catalogue": ("find_profile", "shipped_names"),
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
    "shipped_names",
]


__getattr__ = lazy_names(__name__, _HOMES)
