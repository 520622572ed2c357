"""Tests that need other trainers: ``./run test-integrations``. Skipped if one is missing."""

import os
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest

CHECKOUT = os.environ.get("SEQPLAN_MEGATRON")
"""A checkout of Megatron-LM to test instead of the release."""


def pytest_configure() -> None:
    """Import a checkout that is named, or fail: its tests would be skipped else."""
    if not CHECKOUT:
        return
    sys.path.insert(0, CHECKOUT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = import_module("megatron.core.datasets.data_schedule")
    imported, checkout = Path(str(module.__file__)).resolve(), Path(CHECKOUT).resolve()
    if not imported.is_relative_to(checkout):
        raise pytest.UsageError(f"SEQPLAN_MEGATRON: {CHECKOUT}. Name a checkout of Megatron-LM")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Trainers warn of what they have not: accelerators, kernels, newer versions."""
    for test in items:
        test.add_marker(pytest.mark.filterwarnings("ignore"))
