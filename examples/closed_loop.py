"""Plans follow a rank that becomes slow: measured times, refit, next proposal, in one running job.

    python examples/closed_loop.py

It starts a service and four ranks on this machine. From step 64 on one rank takes 2.5 times as
long. The job begins with ``refit``: the service corrects the profile, which was measured on another
machine, and then plans around the slow rank. Steps of each revision are printed.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from seqplan import Client

DATA = Path(__file__).parent / "data"
RANKS, MAX_LEN, TOKENS = 4, 1024, 4000
SLOW_RANK, SLOW_FROM, FACTOR = 2, 64, 2.5


def main() -> list[str]:
    """Run service and ranks; the kind of each revision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--job", help="URL of the job: run as one of its ranks")
    arguments = parser.parse_args()
    if arguments.job is not None:
        train(arguments.job)
        return []
    with tempfile.TemporaryDirectory() as folder:
        url = f"http://127.0.0.1:{find_port()}"
        serve = ["-m", "seqplan.api.cli", "serve", "--store", f"{folder}/seqplan.db"]
        processes = [start([*serve, "--port", url.rpartition(":")[2], "--log", "error"])]
        try:
            with Client(url) as client:
                return run_job(client, url, arguments.steps, processes)
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait()


def run_job(
    client: Client, url: str, steps: int, processes: list[subprocess.Popen[bytes]]
) -> list[str]:
    """Begin a job, train, and print what became of its plans."""
    lengths = client.upload_lengths(np.load(DATA / "code.npy")).id
    profile = client.upload_profile((DATA / "llama-small-cpu.json").read_text("utf-8")).id
    proposal = client.create_proposal(
        profile=profile, lengths=lengths, gpus=RANKS, max_len=MAX_LEN, tokens=TOKENS, sync="none"
    ).id
    list(client.watch(client.get_proposal, proposal))
    client.create_job(
        id="job", proposal=proposal, lengths=lengths, steps=steps, look_ahead=4, refit=True
    )
    group = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(find_port()),
        "WORLD_SIZE": str(RANKS),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    ranks = [
        start([__file__, "--job", f"{url}/v1/jobs/job"], {**group, "RANK": str(rank)})
        for rank in range(RANKS)
    ]
    processes += ranks
    if any(rank.wait() for rank in ranks):
        raise SystemExit("a rank failed")
    done = list(client.items(client.list_steps, "job"))
    revisions = client.get_revisions("job").items
    ends = [*(revision.step for revision in revisions[1:]), steps]
    print(f"ranks 0 to {RANKS - 1}; rank {SLOW_RANK} takes {FACTOR} times as long from step "
          f"{SLOW_FROM} on")  # fmt: skip
    for revision, end in zip(revisions, ends, strict=True):
        print(f"from step {revision.step}: {revision.kind}: {revision.reason}")
        for first, last in split(revision.step, end):
            of = [step for step in done if first <= step.step < last and step.measured_ms]
            if of:
                rate = median(1e3 * (step.measured_ms or 0.0) / step.tokens for step in of)
                error = median((step.measured_ms or 0.0) / step.predicted_ms for step in of) - 1
                print(f"  steps {first} to {last - 1}: {rate:.0f} ms for 1,000 tokens (slowest "
                      f"rank), {100 * error:+.0f} % of the prediction")  # fmt: skip
    return [revision.kind for revision in revisions]


def train(job: str) -> None:
    """Train as one rank, and report computing times."""
    import torch
    import torch.distributed as dist

    from seqplan import runtime

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    config = runtime.models.ModelConfig(
        vocab=256, hidden=64, layers=2, heads=4, kv_heads=2, ffn=128
    )
    groups = runtime.Communicators.create()
    trainer = runtime.StagedLlama(runtime.models.Llama(config), groups)
    masters = [master for _, master in trainer.states.master_parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-3)
    data = runtime.data.SeededTokens(config.vocab, seed=0)
    preparer = trainer.make_preparer(data)
    with runtime.steps(job, prepare=preparer, control_group=groups.control) as steps:
        for step in steps:
            result = trainer.run_step(step.view, step.prepared, optimizer)
            took_s = result.compute_s
            if dist.get_rank() == SLOW_RANK and step.view.step >= SLOW_FROM:
                time.sleep((FACTOR - 1) * took_s)
                took_s *= FACTOR
            steps.acknowledge(step.view.step, 1e3 * took_s if step.prepared else None)
    dist.destroy_process_group()


def split(first: int, last: int) -> list[tuple[int, int]]:
    """Split steps where the rank becomes slow."""
    if first < SLOW_FROM < last:
        return [(first, SLOW_FROM), (SLOW_FROM, last)]
    return [(first, last)]


def find_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def start(
    arguments: list[str], environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start Python with these arguments."""
    return subprocess.Popen([sys.executable, *arguments], env={**os.environ, **(environment or {})})


if __name__ == "__main__":
    main()
