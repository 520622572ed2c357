"""Plans for training large Transformers on sequences of very different lengths."""

from seqplan.plans.version import VERSION as __version__

__all__ = ["__version__"]
