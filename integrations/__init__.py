"""Trainers that exist, fed with plans: one file a host, each imported only by who uses it.

Hosts that take steps: ``balanced_steps`` (which sequences each step takes, balanced over ranks),
then ``huggingface_trainer`` (``transformers.Trainer`` and what subclasses it), with ``axolotl`` on
top. Hosts that ask for a schedule of the sequences they have: ``degree_costs`` (what a micro-batch
costs there), then ``megatron``, ``slime`` and ``verl``; ``versions`` refuses those that lack the
place for it.
"""
