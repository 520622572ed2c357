"""Policy-gradient steps on rollouts that verl's and slime's rules, or ``balance``, distribute.

    torchrun --nproc-per-node 4 examples/rollouts.py

verl gives each rank equally many responses and packs each rank's by itself; slime packs all of them
by first fit and gives ranks equally many micro-batches. ``balance`` does both, by measured costs. A
step scores a rollout, gathers the log-probabilities of whole responses, and trains on the clipped
objective with an advantage for each token. Printed is the CPU time of the slowest rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from policy_gradient import clipped_loss
from transformers import AutoModelForCausalLM, LlamaConfig

import seqplan
from seqplan import Cost, huggingface, runtime
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.systems.karmarkar_karp import verl_micro_batches
from seqplan.planner.systems.trainers import first_fit_split

PROFILE = str(Path(__file__).parent / "data" / "llama-small-cpu.json")
VOCAB, PROMPT, LONGEST, RESPONSES, STEPS = 256, 16, 2048, 48, 4

MicroBatches = list[list[list[int]]]
"""Responses by rank and micro-batch."""


def main(steps: int = STEPS) -> float:
    """Train on the same rollouts in each way; the largest difference of gradient norms."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    lengths = {"max_position_embeddings": LONGEST}
    config = LlamaConfig(vocab_size=VOCAB, **sizes, **heads, **lengths)
    rows: dict[int, dict[str, Any]] = {}
    job = huggingface.attach(
        AutoModelForCausalLM.from_config(config),
        runtime.data.IndexedTargets(rows, "tokens", mask="mask", extras=["advantage", "old"]),
        # Rate 0: every way computes the same gradients, which are compared.
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        loss_of=clipped_loss,
    )
    seconds = dict.fromkeys(list_ways(), 0.0)
    norms: dict[int, list[float]] = {}
    plans = (
        (way, rollout, part)
        for rollout in range(steps)
        for way in list_ways()
        for part in ("score", "train")
    )
    order: list[tuple[str, int, str]] = []

    def planned() -> Any:
        for number, (way, rollout, part) in enumerate(plans):
            order.append((way, rollout, part))
            if part == "score":
                draw_rollout(rows, rollout)
            ids = sorted(rows)
            lengths = [len(rows[id]["tokens"]) for id in ids]
            micro_batches = list_ways()[way](lengths, job.world_size)
            yield seqplan.construct_plan(lengths, {"tp1": micro_batches}, ids=ids, step=number)

    for step in job.steps(planned()):
        way, rollout, part = order[step.view.step]
        began = time.thread_time()
        if part == "score":
            for id, values in job.token_values(step):
                rows[id]["old"] = values
            continue
        report = job.run(step, clip_norm=1.0)
        spent = torch.tensor(time.thread_time() - began)
        dist.all_reduce(spent, dist.ReduceOp.MAX, group=job.groups.control)
        seconds[way] += float(spent)
        norms.setdefault(rollout, []).append(report.gradient_norm)
    apart = max(max(of) / min(of) - 1 for of in norms.values())
    if job.rank == 0:
        for way, total in seconds.items():
            print(f"{way:<24} {total / steps:.2f} CPU-s a step (slowest rank)")
        print(f"gradient norms of the ways differ by at most {apart:.1e}", flush=True)
    job.close()
    return apart


def list_ways() -> dict[str, Callable[[list[int], int], MicroBatches]]:
    """List the ways to distribute responses over ranks, by name."""
    (entry,) = (e for e in seqplan.find_profile(PROFILE).schemes if str(e.scheme) == "tp1")
    cost = Cost(entry.latency.a, entry.latency.b, entry.latency.c)
    model = SchemeModel(entry.scheme, entry.latency, LONGEST)

    def balanced(*, equal_samples: bool) -> Callable[[list[int], int], MicroBatches]:
        return lambda lengths, ranks: (
            seqplan.balance(
                lengths, ranks, LONGEST, cost, execution="uniform", equal_samples=equal_samples
            ).micro_batches
        )

    def slime(lengths: list[int], ranks: int) -> MicroBatches:
        return first_fit_split(Batch.from_lengths(lengths), ranks, model)[1]

    return {
        "verl": lambda lengths, ranks: verl_micro_batches(lengths, ranks, model),
        "verl's shape, balanced": balanced(equal_samples=True),
        "slime": slime,
        "slime's shape, balanced": balanced(equal_samples=False),
    }


def draw_rollout(rows: dict[int, dict[str, Any]], number: int) -> None:
    """Draw responses of a rollout, with an advantage for each token; the same on every rank."""
    rng = np.random.default_rng(number)
    rows.clear()
    for id in range(number * RESPONSES, (number + 1) * RESPONSES):
        length = PROMPT + int(min(rng.lognormal(5.5, 1.0), LONGEST - PROMPT - 1)) + 1
        mask = [0] * PROMPT + [1] * (length - PROMPT)
        # The reward is at the end, and counts less for the tokens before it.
        gain = rng.normal() * 0.999 ** np.arange(length)[::-1]
        rows[id] = {
            "tokens": rng.integers(0, VOCAB, length),
            "mask": mask,
            "advantage": gain.astype(np.float32),
            "old": np.zeros(length, np.float32),
        }


if __name__ == "__main__":
    main()
