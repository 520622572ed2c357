"""Measurements behind the figures in the README: ``./run bench``."""
