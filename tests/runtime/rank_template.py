"""Import once, in the server that forks ranks, what each rank would import for itself."""

import gc
import importlib
import sys
from contextlib import suppress
from pathlib import Path

from seqplan.planner.bounds.linear_program import SOLVER

gc.disable()  # each collection would walk all that is imported so far
TESTS = Path(__file__).parents[1]
for shared in (TESTS, TESTS / "runtime", TESTS / "plans"):
    sys.path.insert(0, str(shared))  # as pytest does, for modules that tests share
for name in (
    "torch",
    "torch._dynamo",  # an optimizer imports it when it is made, which takes seconds
    "torch.distributed.checkpoint",
    "torch.profiler._cupti_monitor",
    "fsspec",  # which a checkpoint's writer and reader import
    "pytest",  # which every file of tests imports
    "unittest.mock",
    "multiprocessing.popen_forkserver",
    "seqplan.api.rest.server",  # of files whose ranks need a service
    "seqplan.api.service.service",
    "seqplan.runtime.check.reference",
    "seqplan.runtime.checkpoint.save_restore",
    "seqplan.runtime.pipeline.staged_llama",
    "seqplan.runtime.sources.consumer",
    "seqplan.runtime.sources.http_source",
    "seqplan.runtime.training.prepare",
    "seqplan.runtime.training.run_step",
    "seqplan.planner.workers.processes",
    "seqplan.profiler.measure.run",
    *SOLVER,
    *("consuming", "expert_runs", "nccl_rules", "plan_service", "ranks", "small_plans"),
    *("staged_runs", "trainers"),
):
    with suppress(ImportError):  # another torch may lack one
        importlib.import_module(name)
gc.freeze()
gc.enable()
