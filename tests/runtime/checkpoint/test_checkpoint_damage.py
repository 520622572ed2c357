"""Checkpoints that cannot be written or read: one line, and the one before if it is whole."""

import resource
import shutil
import signal
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from ranks import run_ranks, run_ranks_expecting_failure

from seqplan.runtime.checkpoint.save_restore import Cursor, restore, save
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.errors import CheckpointError
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.states.sharded_states import ShardedStates

CONFIG = ModelConfig(hidden=24, layers=2, heads=3, kv_heads=1, ffn=20, vocab=17)


def parts() -> tuple[Communicators, ShardedStates, torch.optim.Optimizer]:
    groups = Communicators.create()
    torch.manual_seed(0)
    states = ShardedStates(Llama(CONFIG), groups.states)
    return groups, states, torch.optim.AdamW([m for _, m in states.master_parameters()])


def write(rank: int, world_size: int, folder: Path, steps: int) -> None:
    groups, states, optimizer = parts()
    for step in range(1, steps + 1):
        extra = {"rank": rank}
        save(folder, Cursor(step, None), states, optimizer, groups.control, extra=extra)


def read(rank: int, world_size: int, *folders: Path) -> list[tuple[int, str]]:
    """The restored step and its warning, or 0 and the error, of each folder."""
    groups, states, optimizer = parts()
    restored = []
    for folder in folders:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                cursor = restore(folder, states, optimizer, groups.control)
            except CheckpointError as error:
                restored.append((0, str(error)))
                continue
        (text,) = [str(warning.message) for warning in warned] or [""]
        restored.append((cursor.next_step, text))
    return restored


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def scramble(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


DAMAGES: list[tuple[str, Callable[[Path], None], str]] = [
    ("__1_0.distcp", cut, "bytes, "),
    ("__1_0.distcp", scramble, ""),
    ("__0_0.distcp", Path.unlink, "No such file or directory (__0_0.distcp)"),
    (".metadata", cut, "bytes, "),
    (".metadata", scramble, ""),
    ("extra-00001.pt", scramble, ""),
    ("cursor.json", cut, "JSONDecodeError"),
    ("cursor.json", scramble, "UnicodeDecodeError"),
]


def test_the_checkpoint_before_a_damaged_one_is_restored(tmp_path: Path) -> None:
    """Of each damage the newest checkpoint has, and then of each that both have."""
    run_ranks(write, 2, tmp_path / "whole", 2)
    folders = [tmp_path / f"{steps}-{n}" for steps in (1, 2) for n in range(len(DAMAGES))]
    for folder, (name, damage, _) in zip(folders, DAMAGES * 2, strict=True):
        shutil.copytree(tmp_path / "whole", folder)
        damage(folder / "step-00000002" / name)
        if folder.name.startswith("2"):
            damage(folder / "step-00000001" / name)
    for outcomes in run_ranks(read, 2, *folders):
        for folder, (step, text), (_, _, cause) in zip(folders, outcomes, DAMAGES * 2, strict=True):
            assert "\n" not in text
            if folder.name.startswith("1"):
                assert step == 1
                assert text.startswith(f"{folder / 'step-00000002'}: is damaged: ")
                assert cause in text
                assert text.endswith("; going back to step-00000001")
            else:
                assert step == 0
                assert text.startswith(f"{folder / 'step-00000001'}: is damaged: ")


def test_paths_that_are_no_folder_of_checkpoints(tmp_path: Path) -> None:
    folder, file = tmp_path / "whole", tmp_path / "file"
    run_ranks(write, 2, folder, 1)
    file.touch()
    for (_, of_file), (_, of_one), restored in run_ranks(
        read, 2, file, folder / "step-00000001", folder
    ):
        assert of_file == f"{file}: is a file. Give the folder of the checkpoints"
        assert of_one == f"{folder / 'step-00000001'}: is one checkpoint. Give its folder, {folder}"
        assert restored == (1, "")


def write_without_room(rank: int, world_size: int, folder: Path) -> None:
    """One rank may write small files only, as on a full disk."""
    groups, states, optimizer = parts()
    save(folder, Cursor(1, None), states, optimizer, groups.control)
    if rank == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    try:
        save(folder, Cursor(2, None), states, optimizer, groups.control)
    finally:
        if rank == 1:
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )


def test_a_full_disk_is_one_line_and_keeps_old_files(tmp_path: Path) -> None:
    for text in run_ranks_expecting_failure(write_without_room, 2, tmp_path):
        assert text.startswith(f"CheckpointError: {tmp_path / 'step-00000002'}: cannot be written")
        assert "rank 1: " in text
        assert "\n" not in text
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000001"]
    assert run_ranks(read, 2, tmp_path) == [[(1, "")]] * 2


def write_and_wait(rank: int, world_size: int, folder: Path, done: Path) -> None:
    write(rank, world_size, folder, 1)
    (folder / f"written-{rank}").touch()
    while not done.exists():
        time.sleep(0.02)


def test_two_jobs_cannot_write_into_one_folder(tmp_path: Path) -> None:
    folder, done = tmp_path / "checkpoints", tmp_path / "done"
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run_ranks, write_and_wait, 2, folder, done)
        while not (folder / "written-1").exists():
            assert not first.done()
            time.sleep(0.02)
        for text in run_ranks_expecting_failure(write, 2, folder, 1):
            assert "another job writes into this folder (process " in text
            assert "\n" not in text
        done.touch()
        first.result()
    run_ranks(write, 2, folder, 3)  # the lock has ended with its job
