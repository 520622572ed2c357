"""Ranks of ``examples/train.py``, forked from a server that has imported torch."""

from __future__ import annotations

import os
import runpy
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TextIO

import torch
from ranks import FORKED

TRAINER = Path(__file__).parents[2] / "examples" / "train.py"


@dataclass(frozen=True)
class Trainer:
    """A rank, and what it says: stdout and stderr."""

    process: BaseProcess
    output: TextIO

    def end(self) -> None:
        """Kill it, if it is alive."""
        self.process.kill()
        self.process.join()
        self.output.close()


def start_trainers(world_size: int, arguments: Sequence[str | Path]) -> list[Trainer]:
    """``examples/train.py arguments…`` on every rank, in rank order, as torchrun starts it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment |= {"WORLD_SIZE": str(world_size), "GLOO_SOCKET_IFNAME": "lo"}
    trainers = []
    for rank in range(world_size):
        here, there = FORKED.Pipe(duplex=False)
        its_own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        line = [str(TRAINER), *map(str, arguments)]
        process = FORKED.Process(target=_train, args=(there, line, its_own), daemon=True)
        process.start()
        there.close()
        trainers.append(Trainer(process, os.fdopen(os.dup(here.fileno()))))
        here.close()
    return trainers


def _train(output: Connection, line: list[str], environment: dict[str, str]) -> None:
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    torch.set_num_threads(1)
    os.environ.update(environment)
    sys.argv = line
    runpy.run_path(line[0], run_name="__main__")
