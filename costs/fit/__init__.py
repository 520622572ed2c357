"""Fits of profiles to measurements.

``samples`` defines measurements, ``sample_file`` stores them, ``pooling`` and ``busy`` clean them,
``latency_fit`` and ``measured_profile`` fit them and write the profile; ``refit`` and
``calibration`` use step times that come back from training.
"""
