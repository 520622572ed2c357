"""Profiles from measurements: a design of lengths, samples on disk, fits with honest errors."""
