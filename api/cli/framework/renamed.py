"""Old spellings of commands, which are errors that name the new ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from seqplan.api.cli.framework.commands import COMMANDS, GROUPS

_COMMANDS = {
    "profiles": "profile list",
    "refit": "profile refit",
    "verify-device": "profile verify",
    "validate-model": "profile validate",
    "train-check": "check training",
}
_PROGRAMS = {"--estimate": "derive", "--complete": "derive", "--merge": "merge"}
"""Options that chose one of the former programs of ``profile``, and the command of each."""

_SIZES = ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "head_dim", "tied", "no_tied")
_DEVICE = (
    *("intra_gb_s", "inter_gb_s", "inter_rails", "peak_tflops", "hbm_gb_s", "memory_gib"),
    *("matmul_efficiency", "attention_kernel"),
)
"""Fields of files that were options."""

_ELSEWHERE = {
    "--server": ("url", "service"),
    "--hardware": ("device", "devices", "gpu_type", "accelerator"),
    "--gpus": ("world_size", "num_gpus", "n_gpus", "ranks", "nproc"),
    "--max-len": (
        *("context", "context_length", "context_len", "seq_len", "seq_length", "sequence_length"),
        *("max_seq_len", "max_seq_length", "max_length", "max_model_len"),
    ),
    "--tokens": ("batch_tokens", "tokens_per_step", "tokens_per_batch", "global_batch_tokens"),
    "--steps": ("max_steps", "num_steps", "iterations", "train_iters"),
    "-o": ("out", "output_dir", "output_file"),
}
"""Our options, and what trainers and people call the same."""


def check_spelling(words: Sequence[str]) -> None:
    """Raise ``ValueError``, which names the new command, for an old spelling."""
    if not words:
        return
    first, rest = words[0], words[1:]
    if first == "profiles" and rest and not rest[0].startswith("-"):
        raise ValueError(_message("profiles", "profile show"))
    if first in _COMMANDS:
        raise ValueError(_message(first, _COMMANDS[first]))
    if first not in GROUPS or not rest or rest[0] in ("-h", "--help"):
        return
    if first == "profile" and rest[0].startswith("-"):
        options = [word.partition("=")[0] for word in rest]
        option = next((option for option in options if option in _PROGRAMS), options[0])
        new = _PROGRAMS.get(option, "measure")
        raise ValueError(_message(f"profile {option}", f"profile {new}"))
    if first == "check" and not any(name.startswith(f"check {rest[0]}") for name in COMMANDS):
        raise ValueError(_message(f"check {rest[0]}", "check plans"))


def _message(old: str, new: str) -> str:
    return f"unknown command: seqplan {old}. Did you mean seqplan {new}? (see seqplan {new} --help)"


def find_moved(option: str, known: Collection[str]) -> str | None:
    """Return what stands for an option that a command lacks; None if nothing does.

    ``known``: options of the command.
    """
    if option == "--gpus" and "--nodes" in known:
        return "--nodes with --gpus-per-node"
    field = option.removeprefix("--").replace("-", "_")
    for ours, others in _ELSEWHERE.items():
        if field in others and ours in known:
            return ours
    for new, fields in (("--model", _SIZES), ("--hardware", _DEVICE)):
        if field in fields and new in known:
            return f"{new} FILE with {field.removeprefix('no_')}"
    return None
