"""Hugging Face causal language models under sequence-parallel plans.

Read ``attach`` and ``job`` first, which a program calls; then ``attached`` (the model as a step
calls it), ``attention`` (of transformers' layers), ``inspection`` with ``support`` and ``probe``
(detection of computations that are not exact), and ``progress`` (for checkpoints). Needs the extra
``huggingface``. The public names are in ``seqplan.huggingface``.
"""
