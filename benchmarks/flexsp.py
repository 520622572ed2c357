"""FlexSP's setting: GPT-7B on 64 A100s, 512 Wikipedia sequences a step, in micro-steps."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from benchmarks.settings import Data, markdown
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.plan_micro_steps import plan_micro_steps
from seqplan.planner.lockstep.proof import prove_micro_steps
from seqplan.planner.systems.programs.flexsp_program import flexsp

PROFILE, GPUS, SEQUENCES, BATCHES, SEED = "gpt-7b-a100-40gb", 64, 512, 5, 3
CONTEXTS = (32768, 196608)
LIMIT_S = 10.0


def run(data: Sequence[Data]) -> None:
    """Print micro-steps of ours and of the published formulation on the same batches."""
    profile = load_shipped(PROFILE)
    rows, summary = [], []
    for source in data:
        for context in CONTEXTS:
            models = profile.usable(GPUS, context)
            by_scheme = {model.scheme: model for model in models}
            drawn = np.random.default_rng(SEED).permutation(np.minimum(source.lengths, context))
            ratios, times, gaps = [], [], []
            for step in range(BATCHES):
                lengths = drawn[step * SEQUENCES : (step + 1) * SEQUENCES].tolist()
                batch = Batch.from_lengths(lengths, step)
                start = time.perf_counter()
                micro_steps = plan_micro_steps(batch, models, GPUS)
                times.append((time.perf_counter() - start) * 1000)
                if micro_steps is None:
                    raise RuntimeError(f"no micro-steps for a sequence of {batch.longest} tokens")
                quick = micro_steps.lower_bound_ms
                start = time.perf_counter()
                micro_steps = prove_micro_steps(micro_steps, batch)
                proved_s = time.perf_counter() - start
                gaps.append(micro_steps.objective_ms / micro_steps.lower_bound_ms - 1)
                start = time.perf_counter()
                theirs = flexsp(lengths, by_scheme, GPUS, time_limit_s=LIMIT_S)
                took = time.perf_counter() - start
                ratios.append(theirs.predicted_ms / micro_steps.objective_ms)
                rows.append(
                    [
                        source.name,
                        f"{context:,}",
                        str(step),
                        f"{theirs.predicted_ms:,.0f}",
                        f"{micro_steps.objective_ms:,.0f}",
                        f"{quick:,.0f}",
                        f"{micro_steps.lower_bound_ms:,.0f} in {proved_s:.1f} s",
                        f"{ratios[-1]:.3f}",
                        f"{took:.1f} s / {times[-1]:.0f} ms",
                    ]
                )
            summary.append(
                f"{source.name}, {context:,}: ratio {min(ratios):.3f} to {max(ratios):.3f}, "
                f"planning median {np.median(times):.0f} ms, largest {max(times):.0f} ms; "
                f"proven gap median {np.median(gaps):.1%}, largest {max(gaps):.1%}"
            )
    print(f"### FlexSP's setting ({PROFILE}, {GPUS} GPUs, {SEQUENCES} sequences; ms)\n")
    head = [
        "lengths",
        "context",
        "batch",
        "published formulation (HiGHS)",
        "ours",
        "bound",
        "bound by micro-step",
    ]
    print(markdown([*head, "ratio", "planning"], rows) + "\n")
    print("\n".join(summary) + "\n")
