"""Reinforce what a Hugging Face model samples: rollouts, their log-probabilities, clipped updates.

    torchrun --nproc-per-node 4 examples/policy_gradient.py

A prompt is a few tokens, the reward the share of even tokens in what follows. Lengths are known
after the rollout only, so that every rank plans for itself: a step that scores the rollout, and two
that train on it. The model is a Llama of random weights, so that nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, LlamaConfig

import seqplan
from seqplan import huggingface, runtime

PROFILE = Path(__file__).parent / "data" / "llama-small-cpu.json"
VOCAB, PROMPTS, LONGEST, ROLLOUTS, UPDATES = 16, 24, 32, 6, 2


def main() -> list[float]:
    """Train; the mean reward of every rollout."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=VOCAB, **sizes, **heads))
    rows: dict[int, dict[str, Any]] = {}
    job = huggingface.attach(
        model,
        runtime.data.IndexedTargets(rows, "tokens", mask="mask", extras=["advantage", "old"]),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=5e-3),
        loss_of=clipped_loss,
    )
    rewards: list[float] = []
    for step in job.steps(rolled_out(job, rows, rewards)):
        if step.view.step % (1 + UPDATES):
            job.run(step, clip_norm=1.0)
            continue
        for id, values in job.token_values(step):
            rows[id]["old"] = values
        # Scored, not trained on: the steps that follow are of the same rows.
    if job.rank == 0:
        print("mean rewards:", ", ".join(f"{reward:.2f}" for reward in rewards), flush=True)
    job.close()
    return rewards


def clipped_loss(logits: torch.Tensor, micro_batch: runtime.MicroBatchWork) -> torch.Tensor:
    """Sum PPO's clipped objective over the tokens that were sampled."""
    assert micro_batch.weights is not None
    advantage, old = micro_batch.extras["advantage"], micro_batch.extras["old"]
    ratio = torch.exp(runtime.losses.log_probabilities(logits, micro_batch) - old)
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return -(gain * micro_batch.weights).sum()


def rolled_out(
    job: huggingface.Job, rows: dict[int, dict[str, Any]], rewards: list[float]
) -> Iterator[seqplan.Plan]:
    """Sample when the next step is asked for, and plan what came of it."""
    workload = seqplan.Workload(gpus=job.world_size, max_len=LONGEST, tokens=PROMPTS * LONGEST // 2)
    profile = seqplan.find_profile(str(PROFILE))
    lengths = np.random.default_rng(0).integers(8, LONGEST + 1, 100)
    planner = seqplan.StepPlanner(seqplan.make_proposal(profile, workload, lengths))
    for number in range(ROLLOUTS):
        samples = sampled(job, number)
        gained = np.array([sample["reward"] for sample in samples])
        rewards.append(float(gained.mean()))
        ids = range(number * PROMPTS, (number + 1) * PROMPTS)
        rows.clear()
        for id, sample, gain in zip(ids, samples, gained - gained.mean(), strict=True):
            tokens = len(sample["tokens"])
            rows[id] = {**sample, "advantage": float(gain), "old": np.zeros(tokens, np.float32)}
        sizes = tuple(len(rows[id]["tokens"]) for id in ids)
        for step in range(number * (1 + UPDATES), (number + 1) * (1 + UPDATES)):
            yield planner.plan(seqplan.Batch(step, tuple(ids), sizes))


def sampled(job: huggingface.Job, number: int) -> list[dict[str, Any]]:
    """Sample this rank's part of a rollout; return all ranks' samples, in rank order."""
    generator = torch.Generator().manual_seed(1000 * number + job.rank)
    first, last = (PROMPTS * (job.rank + more) // job.world_size for more in (0, 1))
    tokens = torch.randint(0, VOCAB, (last - first, 4), generator=generator)
    with job.evaluation() as model:
        for _ in range(LONGEST - 4):
            chances = model(input_ids=tokens).logits[:, -1].softmax(-1)
            tokens = torch.cat((tokens, torch.multinomial(chances, 1, generator=generator)), 1)
    lengths = torch.randint(8, LONGEST + 1, (last - first,), generator=generator).tolist()
    mine = [
        {
            "tokens": row[:length].numpy(),
            "mask": [0] * 4 + [1] * (length - 4),
            "reward": float((row[4:length] % 2 == 0).float().mean()),
        }
        for row, length in zip(tokens, lengths, strict=True)
    ]
    everyone: list[list[dict[str, Any]]] = [[] for _ in range(job.world_size)]
    dist.all_gather_object(everyone, mine, group=job.groups.control)
    return [sample for rank in everyone for sample in rank]


if __name__ == "__main__":
    main()
