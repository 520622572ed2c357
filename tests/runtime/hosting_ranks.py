"""Ranks with transformers: forked from one process that has imported it, which costs seconds."""

from __future__ import annotations

import os
import tempfile
import threading
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from ranks import FORKED

needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("peft") is None,
    reason="transformers and peft are not installed",
)


def hosted(
    function: Callable[..., Any],
    beside: Callable[[], Any],
    world_size: int,
    *args: Any,
    timeout_s: float = 240,
    joined: bool = True,
) -> tuple[list[Any], Any]:
    """``function(rank, world_size, *args)`` of every rank, in rank order, and ``beside()``.

    Each rank has the default gloo group, unless they are not to be ``joined``.
    ``AssertionError`` with the traceback of the first that fails. No process is left behind.
    """
    here, there = FORKED.Pipe()
    process = FORKED.Process(
        target=_fork_ranks, args=(there, function, beside, world_size, joined, args)
    )
    process.start()
    there.close()
    try:
        assert here.poll(timeout_s), f"silent after {timeout_s} s"
        results, error = here.recv()
    finally:
        process.kill()
        process.join()
    assert not error, error
    return results[:-1], results[-1]


def _fork_ranks(
    pipe: Connection,
    function: Callable[..., Any],
    beside: Callable[[], Any],
    world_size: int,
    joined: bool,
    args: tuple[Any, ...],
) -> None:
    import peft
    import torch
    import torch._dynamo  # an optimizer imports it when it is made, which takes seconds
    import transformers
    from transformers import AutoModelForCausalLM  # noqa: F401 - loads what models need

    assert peft
    _end_with_parent()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    forking = get_context("fork")
    results: list[Any] = []
    error = ""
    with tempfile.TemporaryDirectory() as folder:
        pipes = []
        for rank in range(world_size):
            here, there = forking.Pipe()
            forking.Process(
                target=_rank,
                args=(there, function, rank, world_size, Path(folder) if joined else None, args),
            ).start()
            there.close()
            pipes.append(here)
        try:
            own: Any = beside()
        except BaseException:
            own, error = None, traceback.format_exc()
        for rank, there in enumerate(pipes):
            try:
                value, trace = there.recv()
            except EOFError:
                value, trace = None, "died"
            results.append(value)
            error = error or (f"rank {rank}: {trace}" if trace else "")
        pipe.send(([*results, own], error))


def _rank(
    pipe: Connection,
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    folder: Path | None,
    args: tuple[Any, ...],
) -> None:
    import torch.distributed as dist

    _end_with_parent()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if folder is not None:
        meeting = f"file://{folder / 'meeting'}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
    try:
        pipe.send((function(rank, world_size, *args), ""))
    except BaseException:
        pipe.send((None, traceback.format_exc()))
        os._exit(1)
    if folder is not None:
        dist.barrier()
        dist.destroy_process_group()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
