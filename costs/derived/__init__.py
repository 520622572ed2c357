"""Profiles of a model that nobody measured: ``model_profiles``; ``expected_error``: how far off."""
