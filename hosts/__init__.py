"""Trainers that exist, fed with plans: one file a host, each imported only by who uses it.

Read ``balanced_steps`` (which sequences each step takes, balanced over the ranks) and then a host:
``huggingface_trainer`` (``transformers.Trainer`` and what subclasses it).
"""

__all__ = ["balanced_steps", "huggingface_trainer"]
