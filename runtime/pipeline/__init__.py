"""Pipelines of stages: what a rank runs of them, in which order, and how it is prepared.

Read ``llama_units`` (the model's parameters as the layouts see them), ``stage`` (a rank's layers of
them), ``one_f_one_b`` (the passes of a pipeline in order), then ``prepare`` (preparation of
a step), ``run_step`` (the step) and ``staged_llama``, all of it in one place. The names that a
trainer needs are in ``seqplan.runtime``.
"""
