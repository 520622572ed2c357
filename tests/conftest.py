"""Settings of all tests."""

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
LONGEST = (
    *("repository/test_notebook.py", "repository/test_code_blocks.py"),
    *("planner/workers/test_random_settings.py", "planner/workers/test_producer.py"),
    *("runtime/huggingface/test_attached_experts.py", "profiler/measure/test_measured_experts.py"),
    *("runtime/huggingface/test_attached_models.py", "integrations/test_huggingface_trainer.py"),
    *("planner/proposal/test_backends.py", "api/rest/test_job_states.py"),
    *("runtime/sources/test_outages.py", "runtime/checkpoint/test_checkpoint_damage.py"),
    *("runtime/sources/test_steps.py", "runtime/checkpoint/test_checkpoint.py"),
    *("repository/test_plain_install.py", "runtime/experts/test_split_experts.py"),
    *("runtime/test_recomputation.py", "runtime/test_sums_and_orders.py"),
    *("runtime/pipeline/test_staged_steps.py", "runtime/training/test_resume.py"),
)
"""Files that run first, as a worker runs a whole file: at the end others would wait for it."""

# Before torch is imported, here and in processes of tests: a small operation is slower on several
# threads than on one, and where cores are few threads that wait for others take all their time.
os.environ["OMP_NUM_THREADS"] = "1"

# Tests start many threads and processes, on few cores: one that wakes need not interrupt another,
# which may hold what others then wait for in a loop.
if hasattr(os, "SCHED_BATCH"):
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

# Tests make few cycles, and each collection walks all objects of a worker: 4 % of its time.
gc.set_threshold(100_000, 20, 100)

# A busy machine is no failure: no test is judged by its time.
# Most is held by exact cases too: 40 examples are as many as the suite has time for.
settings.register_profile("seqplan", deadline=None, max_examples=40)
settings.load_profile("seqplan")

# A shell ignores Ctrl-C for what it starts in the background, and processes inherit that: tests of
# interrupts would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first."""
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    """Leave imported and collected objects out of later garbage collections."""
    gc.collect()
    gc.freeze()
