"""Measures models on devices and verifies devices: on top of the runtime and the cost models.

``measure`` times micro-batches and records their memory, for the fits of ``costs.fit``;
``verify`` checks that a device runs plans correctly and as predicted.
"""
