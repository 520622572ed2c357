"""One process of a training check: a rank that runs a plan file, or the reference beside them.

Started by the command line as ``python -m seqplan.runtime.train_check``, with ``RANK`` and
``WORLD_SIZE`` in the environment. What it has to say goes to stdout, one JSON object a line: rank
0 its store's ``port``; every process its ``step`` results, and at the end ``done`` or ``error``.
On stdin the other ranks get that port and the reference the word to begin. Stdin then stays open
as long as the parent lives: at its end the process ends, so that none is left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from seqplan.plans.format.plan_file import read_plans
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.files import FoldedTokens, token_file
from seqplan.runtime.data.tokens import SeededTokens, TokenData
from seqplan.runtime.pipeline.staged_llama import StagedLlama
from seqplan.runtime.steps.consumer import PlanConsumer
from seqplan.runtime.steps.source import FileSource
from seqplan.runtime.train_check.reference import dense_attention, reference_step
from seqplan.runtime.training.model import Llama, ModelConfig

LOCALHOST = "127.0.0.1"
WAIT_S = 1800.0
"""How long a rank waits for the others: longer than any step that is worth checking."""

PLAN_S = 120.0
"""How long a step's plan and tokens may take; many ranks may share few cores."""

LEARNING_RATE, EPSILON, CLIP_NORM = 1e-3, 1e-6, 1.0
"""Of AdamW. At its usual ε of 1e-8 an update is the sign of the gradient, so that elements whose
gradients cancel to rounding errors would differ by whole updates between two correct runs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a rank or the reference; 0 when it is done, 1 when it said why it is not."""
    send = _MessageWriter()
    args = _parsed(arguments)
    try:
        if args.reference:
            _read_line()
            _end_with_parent()
            _reference(args, send)
        else:
            _rank(args, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), send)
    except ValueError as error:  # a plan or data: known errors of one line
        send(error=str(error), input=True)
        return 1
    except Exception as error:
        first = str(error).splitlines()[:1]
        send(error=": ".join([type(error).__name__, *first]), input=False)
        return 1
    send(done=True)
    return 0


def _rank(args: argparse.Namespace, rank: int, world_size: int, send: _MessageWriter) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=WAIT_S)
    if rank == 0:
        # The system chooses the port, and the store keeps it: no other process can take it.
        store = TCPStore(LOCALHOST, 0, is_master=True, wait_for_workers=False, timeout=limit)
        send(port=store.port)
    else:
        store = TCPStore(LOCALHOST, int(_read_line()), is_master=False, timeout=limit)
    _end_with_parent()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=limit)
    groups = Communicators.create(WAIT_S)
    config = _config(args)
    plans = FileSource(args.plans, world_size=world_size)
    model = _model(args, config, args.seed + rank)  # rank 0's values must win
    job = StagedLlama(model, groups, tensor_degrees=plans.tensor_degrees())
    optimizer = _optimizer([master for _, master in job.states.master_parameters()])
    with PlanConsumer(
        plans,
        rank=rank,
        world_size=world_size,
        prepare=job.preparation(_data(args)),
        control_group=groups.control,
        start_step=args.first_step,
        timeout_s=PLAN_S,
    ) as consumer:
        for step in islice(consumer, args.steps):
            result = job.run_step(step.view, step.prepared, optimizer, clip_norm=CLIP_NORM)
            consumer.acknowledge(result.step)
            send(
                step=result.step,
                loss=result.loss,
                gradient_norm=result.gradient_norm,
                ms=1000 * result.step_s,
            )
    values: dict[str, Any] = {name: parameter.numpy() for name, parameter in job.states.export()}
    if rank == 0:
        np.savez(args.parameters, **values)
    # All ranks leave together: the store is rank 0's.
    dist.barrier(group=groups.control)
    dist.destroy_process_group()


def _reference(args: argparse.Namespace, send: _MessageWriter) -> None:
    torch.set_num_threads(1)  # a small model's operations are not worth more
    # The initial values of the ranks; bfloat16 is judged against fp32 from there on.
    model = _model(args, _config(args), args.seed, attend=dense_attention)
    if args.dtype == "bfloat16":
        model = model.float()
    optimizer = _optimizer(list(model.parameters()))
    data = _data(args)
    for plan in islice(read_plans(args.plans), args.steps):
        loss, norm = reference_step(plan, data, model, optimizer, clip_norm=CLIP_NORM)
        send(step=plan.step, loss=loss, gradient_norm=norm)
    with np.load(args.parameters) as ranks:
        differences = {
            name: np.abs(ranks[name] - parameter.detach().numpy()).max()
            for name, parameter in model.named_parameters()
        }
    # What is no number is the largest of all, and is said as such.
    worst = max(differences, key=lambda name: np.nan_to_num(differences[name], nan=np.inf))
    send(parameter_difference=float(differences[worst]), parameter=worst)


def _config(args: argparse.Namespace) -> ModelConfig:
    return ModelConfig(
        hidden=args.hidden,
        layers=args.layers,
        heads=args.heads,
        kv_heads=args.kv_heads,
        ffn=args.ffn,
        vocab=args.vocab,
    )


def _model(args: argparse.Namespace, config: ModelConfig, seed: int, **options: Any) -> Llama:
    torch.manual_seed(seed)
    return Llama(config, **options).to(getattr(torch, args.dtype))


def _optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, eps=EPSILON)


def _data(args: argparse.Namespace) -> TokenData:
    if args.data is None:
        return SeededTokens(args.vocab, args.seed)
    return FoldedTokens(token_file(args.data), args.vocab)


class _MessageWriter:
    """Writes messages to what was stdout; whatever else prints there goes to stderr from now on."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def __call__(self, **message: Any) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()


def _read_line() -> str:
    """Return the next line of stdin; end the process where the parent is gone.

    It is read byte by byte: a buffer would take what the watching thread waits for.
    """
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            os._exit(1)
        line += byte
    return line.decode()


def _end_with_parent() -> None:
    """End the process at once, whatever it waits for, when the parent's end of stdin closes."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--plans", required=True)
    parser.add_argument("--first-step", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--parameters", required=True, help=".npz file: the ranks' final values")
    parser.add_argument("--data", help="without it, tokens seeded by sample id")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--dtype", choices=("float32", "float64", "bfloat16"), required=True)
    for size in ("hidden", "layers", "heads", "kv-heads", "ffn", "vocab"):
        parser.add_argument(f"--{size}", type=int, required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
