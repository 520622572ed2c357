"""Measurements behind docs/figures.md: ``./run bench``."""
