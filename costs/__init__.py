"""Latency and memory of micro-batches: profiles of models, measured or derived, and lengths.

``profile`` defines the file that all others make or use; ``latency``, ``memory`` and
``scheme_model`` evaluate it for a scheme. Profiles come from ``fit`` (measurements), ``analytic``
(data sheets) or ``shipped``; ``lengths`` reads the sequence lengths of data sets.

Importing the package imports nothing.
"""
