"""Fine-tune a Hugging Face model: prompts are masked, only the answers are learnt.

    torchrun --nproc-per-node 4 examples/fine_tune.py

Every rank plans for itself, each step when it is asked for; ``--plans plans.jsonl`` takes a plan
file instead. The model is a Llama of random weights, so that nothing is downloaded; ``--model``
takes any other.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import seqplan
from seqplan import huggingface, runtime

PROFILE = Path(__file__).parent / "data" / "llama-small-cpu.json"
VOCAB, SEQUENCES, STEPS, LONGEST = 32, 10, 12, 300
Rows = list[dict[str, list[int]]]


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train and save; the loss of every step."""
    options = parsed(arguments)
    torch.manual_seed(0)
    if options.model is None:
        model = AutoModelForCausalLM.from_config(small_llama())
    else:
        model = AutoModelForCausalLM.from_pretrained(options.model)
    rows = prompts_and_answers(SEQUENCES * STEPS)
    job = huggingface.attach(
        model,
        runtime.data.IndexedTargets(rows, "input_ids", mask="completion_mask"),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, 0.2, 1.0, 4),
        callbacks=[report_step] if os.environ.get("RANK", "0") == "0" else [],
    )
    if job.rank == 0:
        print(job.held_bytes, flush=True)
    losses = [
        job.run(step, clip_norm=1.0).loss
        for step in job.steps(options.plans or planned(rows, job.world_size))
    ]
    if options.output is not None:
        job.save_pretrained(options.output)
    job.close()
    return losses


def small_llama() -> LlamaConfig:
    """The sizes of a model that one core trains."""
    return LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )


def prompts_and_answers(count: int) -> Rows:
    """Make rows: a prompt of random tokens; the answer counts upwards from its last one."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        prompt, answer = (int(size) for size in np.exp(rng.uniform(1, np.log(LONGEST / 2), 2)))
        tokens = rng.integers(0, VOCAB, prompt).tolist()
        tokens += [(tokens[-1] + place) % VOCAB for place in range(1, answer + 1)]
        rows.append({"input_ids": tokens, "completion_mask": [0] * prompt + [1] * answer})
    return rows


def planned(rows: Rows, ranks: int) -> Iterator[seqplan.Plan]:
    """Plan each step when it is asked for, on every rank alike."""
    lengths = np.array([len(row["input_ids"]) for row in rows])
    workload = seqplan.Workload(gpus=ranks, max_len=LONGEST, tokens=int(lengths.mean() * SEQUENCES))
    proposal = seqplan.make_proposal(seqplan.find_profile(str(PROFILE)), workload, lengths)
    planner = seqplan.StepPlanner(proposal)
    for step in range(STEPS):
        ids = range(step * SEQUENCES, (step + 1) * SEQUENCES)
        yield planner.plan(seqplan.Batch(step, tuple(ids), tuple(int(lengths[id]) for id in ids)))


def report_step(report: huggingface.StepReport) -> None:
    """Print what is worth knowing of a step: predicted is what the profile's device would take."""
    measured = "-" if report.measured_ms is None else f"{report.measured_ms:.0f}"
    print(
        f"step {report.step}: loss {report.loss:.4f}, gradient {report.gradient_norm:.2f}, "
        f"rate {report.learning_rates[0]:.1e}, predicted {report.predicted_ms:.0f} ms, "
        f"measured {measured} ms",
        flush=True,
    )


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", help="folder or name of a causal language model")
    parser.add_argument("--plans", help="plan file, instead of plans made here")
    parser.add_argument("--output", help="folder for the trained model")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
