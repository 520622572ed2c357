"""Integrations with trainers, a file for each, imported on use only.

Trainers that take steps: ``balanced_steps`` (which sequences each step takes, balanced over ranks),
then ``huggingface_trainer`` (``transformers.Trainer`` and subclasses), with ``axolotl``,
``llama_factory`` and ``ms_swift`` on top, and ``torchtitan``. Trainers with a pluggable scheduler:
``degree_costs`` (costs of a micro-batch there), then ``megatron``, ``slime`` and ``verl``;
``versions`` rejects those that lack the place for it, ``replacement`` puts planned functions there.
"""
