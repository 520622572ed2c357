"""Ranks with transformers: forked from one process that has imported it, which costs seconds."""

import gc
import os
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ranks import FORKED

needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("peft") is None,
    reason="transformers and peft are not installed",
)


class Program(NamedTuple):
    """``function(rank, world_size, *args)`` of so many ranks, and ``meanwhile()`` meanwhile.

    The ranks have the default gloo group, unless they are not to be ``joined``.
    """

    function: Callable[..., Any]
    world_size: int
    args: tuple[Any, ...]
    joined: bool = True
    meanwhile: Callable[[], Any] = int


def run_with_transformers(
    programs: Sequence[Program], *, first: Callable[[], Any] = int, timeout_s: float = 400
) -> list[tuple[list[Any], Any]]:
    """Run one after the other; return the ranks' results, in rank order, and that of ``meanwhile``.

    ``first`` runs before any rank is forked, which then finds what it has imported.
    ``AssertionError`` with the traceback of the first that fails. No process is left behind.
    """
    here, there = FORKED.Pipe()
    process = FORKED.Process(target=_run_programs, args=(there, programs, first))
    process.start()
    there.close()
    try:
        assert here.poll(timeout_s), f"silent after {timeout_s} s"
        results, error = here.recv()
    finally:
        process.kill()
        process.join()
    assert not error, error
    return results


def _run_programs(pipe: Connection, programs: Sequence[Program], first: Callable[[], Any]) -> None:
    gc.disable()  # each collection would walk all that is imported so far
    import peft
    import torch
    import torch._dynamo  # an optimizer imports it when it is made, which takes seconds
    import transformers
    from transformers import AutoModelForCausalLM  # noqa: F401 - loads what models need

    import seqplan.runtime.huggingface.attach

    assert peft
    assert seqplan
    _end_with_parent()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    first()
    gc.freeze()  # imported objects: walking them would copy its pages in every rank
    gc.enable()
    results = []
    error = ""
    for program in programs:
        if not error:
            ranks, result, error = _run_program(program)
            results.append((ranks, result))
    pipe.send((results, error))


def _run_program(program: Program) -> tuple[list[Any], Any, str]:
    forking = get_context("fork")
    results: list[Any] = [None] * program.world_size
    result, error = None, ""
    with tempfile.TemporaryDirectory() as folder:
        waiting: dict[Any, int] = {}
        for rank in range(program.world_size):
            here, there = forking.Pipe()
            forking.Process(target=_rank, args=(there, program, rank, Path(folder))).start()
            there.close()
            waiting[here] = rank
        try:
            result = program.meanwhile()
        except BaseException:
            error = traceback.format_exc()
        while waiting and not error:  # the others of one that failed may wait for it
            pipe, *_ = wait(list(waiting))
            rank = waiting.pop(pipe)
            try:
                results[rank], trace = pipe.recv()
            except EOFError:
                trace = "died"
            error = f"rank {rank}: {trace}" if trace else ""
    return results, result, error


def _rank(pipe: Connection, program: Program, rank: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    # A fork leaves the thread pool to be made again, by one thread: two at once have found none.
    torch.set_num_threads(1)
    _end_with_parent()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if program.joined:
        meeting = f"file://{folder / 'meeting'}"
        dist.init_process_group(
            "gloo", init_method=meeting, rank=rank, world_size=program.world_size
        )
    try:
        pipe.send((program.function(rank, program.world_size, *program.args), ""))
    except BaseException:
        pipe.send((None, traceback.format_exc()))
        os._exit(1)
    if program.joined:
        dist.barrier()
        dist.destroy_process_group()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
