"""Train a small model under plans: one process for each rank, started by torchrun.

    torchrun --nproc-per-node 4 examples/train.py --plans plans.jsonl --checkpoints checkpoints

Everything a trainer's author needs is in ``main``: what to make once, what to call in a step, and
where to resume. Killed at any moment and started again, it goes on from its last checkpoint and
repeats the losses bit for bit on CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist

from seqplan import runtime
from seqplan.runtime import errors


def main() -> None:
    """Parse the arguments and train until the plans end."""
    arguments = parsed()
    if arguments.device == "cuda":
        # First of all: whatever is made later lies on this rank's device.
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    groups = runtime.Communicators.create()
    plans, degrees = arguments.plans, arguments.tensor_degrees
    if "://" not in plans:  # a plan file, whose tp degrees are known before the first step
        plans = runtime.sources.FileSource(plans, world_size=world_size)
        degrees = plans.tensor_degrees()

    # A Llama runs any strategies; a custom module those with tp = pp = 1, see ShardedStates.
    torch.manual_seed(0)
    config = runtime.models.ModelConfig(vocab=256)
    # The first rank's values are taken, in parts: the others need none, and no memory for them.
    with torch.device("cpu" if rank == 0 else "meta"):
        model = runtime.models.Llama(config)
    if device.type == "cuda":  # flash attention is in 16 bits; the optimizer's copy stays fp32
        model = model.to(torch.bfloat16)
    job = runtime.StagedLlama(
        model, groups, device=device, tensor_degrees=degrees, kernel=arguments.kernel
    )
    states = job.states
    optimizer = torch.optim.AdamW([master for _, master in states.master_parameters()], lr=1e-3)

    cursor = runtime.checkpoint.restore(arguments.checkpoints, states, optimizer, groups.control)
    start_step = arguments.start_step if cursor is None else cursor.next_step

    # Sample ids of the plans are looked up in the data; each rank reads its token ranges.
    data = runtime.data.SeededTokens(config.vocab, seed=0)
    steps = runtime.steps(
        plans,
        prepare=job.make_preparer(data),
        control_group=groups.control,
        start_step=start_step,
        fan_out_ranks=arguments.fan_out_ranks,
    )
    # The host of a rank on NCCL does not notice that another rank has died.
    watch = runtime.training.watch_ranks() if device.type == "cuda" else nullcontext()
    with watch, steps:
        for step in steps:
            result = job.run_step(step.view, step.prepared, optimizer, clip_norm=1.0)
            # A rank without work has nothing to compare with the prediction.
            measured_ms = 1e3 * result.compute_s if step.prepared else None
            steps.acknowledge(step.view.step, measured_ms)
            if arguments.times is not None and step.prepared:
                measured = {"step": result.step, "rank": rank, "measured_ms": measured_ms}
                with open(arguments.times, "a", encoding="utf-8") as times:
                    times.write(json.dumps(measured) + "\n")
            next_step = step.view.step + 1
            if rank == 0:
                record = {"step": result.step, "loss": result.loss, "norm": result.gradient_norm}
                print(json.dumps(record), flush=True)
            if next_step % arguments.checkpoint_every == 0:
                cursor = runtime.checkpoint.Cursor(next_step, step.view.digest)
                runtime.checkpoint.save(
                    arguments.checkpoints, cursor, states, optimizer, groups.control
                )
    if arguments.export is not None:
        parameters = dict(states.export())  # on the first rank, nothing on the others
        if rank == 0:
            torch.save(parameters, arguments.export)
    dist.destroy_process_group()


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--plans", required=True, help="plan file, or a job's URL: http://HOST:PORT/v1/jobs/JOB"
    )
    parser.add_argument(
        "--tensor-degrees", type=int, nargs="*", default=[], help="tp degrees of the job's proposal"
    )
    parser.add_argument(
        "--fan-out-ranks",
        type=int,
        default=512,
        help="ranks from which rank 0 alone requests plans and acknowledges",
    )
    parser.add_argument("--start-step", type=int, default=0, help="first step without checkpoint")
    parser.add_argument("--checkpoints", required=True, help="folder that all ranks share")
    parser.add_argument("--checkpoint-every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--export", help="write the trained parameters here at the end")
    parser.add_argument("--times", help="append step times here, for seqplan profile refit")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--kernel", help="of attention, as fa3; default the first that runs here")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except (errors.RankLost, errors.CheckpointError, errors.PlanError) as error:
        # Groups that have lost a rank cannot be ended in order.
        print(f"rank {os.environ.get('RANK', '0')}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
