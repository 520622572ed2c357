"""Tests that need other trainers installed, by ``./run test-hosts``; skipped without theirs."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Trainers warn of what they have not: accelerators, kernels, newer versions."""
    for test in items:
        test.add_marker(pytest.mark.filterwarnings("ignore"))
