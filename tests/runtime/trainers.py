"""Programs on ranks, as torchrun starts them, but forked from a server that has imported torch."""

import gc
import os
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TextIO

import torch
from free_port import free_port
from ranks import FORKED

TRAINER = Path(__file__).parents[2] / "examples" / "train.py"


@dataclass(frozen=True)
class Trainer:
    """A rank and its output: stdout and stderr."""

    process: BaseProcess
    output: TextIO

    def end(self) -> None:
        """Kill it, if it is alive."""
        self.process.kill()
        self.process.join()
        self.output.close()


def start_trainers(world_size: int, arguments: Sequence[str | Path]) -> list[Trainer]:
    """``examples/train.py arguments…`` on every rank, in rank order."""
    return launched(world_size, TRAINER, arguments)


def launched(
    world_size: int, program: Path | str, arguments: Sequence[str | Path]
) -> list[Trainer]:
    """Run a file or a module with these arguments on every rank, in rank order."""
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment |= {
        "WORLD_SIZE": str(world_size),
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCHELASTIC_RUN_ID": "tests",
    }
    trainers = []
    for rank in range(world_size):
        here, there = FORKED.Pipe(duplex=False)
        its_own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        line = [*map(str, arguments)]
        process = FORKED.Process(target=_run, args=(there, program, line, its_own), daemon=True)
        process.start()
        there.close()
        trainers.append(Trainer(process, os.fdopen(os.dup(here.fileno()))))
        here.close()
    return trainers


def _run(
    output: Connection, program: Path | str, arguments: list[str], environment: dict[str, str]
) -> None:
    gc.freeze()  # what the server has imported: walking it would copy its pages
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    # Those of the server may have been files, and know that they can seek.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - as long as the process
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    torch.set_num_threads(1)
    os.environ.update(environment)
    sys.argv = [str(program), *arguments]
    if isinstance(program, Path):
        runpy.run_path(str(program), run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
