"""Checks of a device, the sync measurement, token values and the example, on fake CUDA."""

import io
import runpy
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from cases import DEVICE, LENGTHS, SIZES, Result, list_faults, make_plan, rehearsal

from seqplan import Scheme, rank_view, runtime, to_json
from seqplan.profiler.measure.bench import Bench
from seqplan.profiler.measure.sync import list_sync_measurements, measure_sync
from seqplan.profiler.verify.settings import VerifySettings
from seqplan.profiler.verify.verification import verification_document, verify
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.training.prepare import make_preparer
from seqplan.runtime.training.sequence_values import token_values

MEMORY = 256 * 2**20
"""Bytes of a device whose largest micro-batch is searched for."""

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train.py"


def check(name: str, world: int = 1) -> Result:
    """Run one of the verification's checks, with the sizes of ``--quick``."""
    memory = {"memory": MEMORY} if name == "memory" else {}
    with rehearsal(0, world, **memory) as (recording, distributed):
        distributed.initialized = world > 1
        groups = runtime.Communicators.create() if world > 1 else None
        settings = VerifySettings(DEVICE, 1.0, quick=True, world_size=world, groups=groups)
        results = verify(settings, [name])
        document = verification_document(settings, results, "rehearsal")
        (found,) = document["checks"]
        return {
            "figures": len(found["figures"]),
            "notes": found["notes"],
            "document": document,
            "faults": list_faults(recording),
        }


def sync() -> Result:
    """Measure the sync of two layouts."""
    with rehearsal(0, 8) as (recording, _):
        groups = runtime.Communicators.create()
        config = ModelConfig(**SIZES, layers=2)
        bench = Bench(config, 1, DEVICE, torch.bfloat16, 0, 8, control_group=groups.control)
        keys = list_sync_measurements([Scheme(), Scheme(tp=2)], bench)
        samples = [measure_sync(bench, key, groups.states) for key in keys]
        times = [len(sample.sync_ms) for sample in samples]
        return {"times": times, "faults": list_faults(recording)}


def values() -> Result:
    """Compute a value for each token of a step on rank 0."""
    with rehearsal(0, 2) as (recording, _):
        groups = runtime.Communicators.create()
        config = ModelConfig(**SIZES, layers=1)
        with DEVICE:
            model = Llama(config).to(torch.bfloat16)
        states = ShardedStates(model, groups.states)
        prepare = make_preparer(
            SeededTokens(config.vocab, 0),
            Peers(groups.attention),
            heads=config.heads,
            kv_heads=config.kv_heads,
            device=DEVICE,
        )
        work = prepare(rank_view(make_plan("u2", 2, LENGTHS, [""]), 0))
        found = token_values(work, model, states, groups.control)
        lengths = [len(one.values) for one in found]
        return {"lengths": lengths, "faults": list_faults(recording)}


def train() -> Result:
    """Run ``examples/train.py`` on two steps of rank 0, without its checkpoints."""
    with tempfile.TemporaryDirectory() as folder, rehearsal(0, 2) as (recording, distributed):
        distributed.initialized = False
        plans = Path(folder, "plans.jsonl")
        plan = make_plan("u2", 2, (96, 40, 9), [""])
        plans.write_text(f"{to_json(plan)}\n", encoding="utf-8")
        arguments = ["train.py", "--plans", str(plans), "--checkpoints", folder, "--device", "cuda"]
        printed = io.StringIO()
        with patch.object(sys, "argv", arguments), redirect_stdout(printed):
            runpy.run_path(str(EXAMPLE), run_name="__main__")
        return {"faults": list_faults(recording), "lines": printed.getvalue().splitlines()}


DEVICE_CASES: dict[str, Callable[[], Result]] = {
    **{
        f"verify {name}": partial(check, name)
        for name in ("attention", "rates", "profile", "memory", "step")
    },
    "verify ranks": partial(check, "ranks", 2),
    "sync": sync,
    "values": values,
    "example": train,
}
