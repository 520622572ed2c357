"""Names that other programs have for our options, and fields of files that are no options."""

from __future__ import annotations

from collections.abc import Collection

_SIZES = ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "head_dim", "tied", "no_tied")
_DEVICE = (
    *("intra_gb_s", "inter_gb_s", "inter_rails", "peak_tflops", "hbm_gb_s", "memory_gib"),
    *("matmul_efficiency", "attention_kernel"),
)
"""Fields of files of models and devices."""

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


_OUTPUTS = {"report": "plan -o FOLDER/ or compare -o FILE"}
"""Commands that write what people take for a command."""


def find_command(word: str, commands: Collection[str]) -> str | None:
    """Return the command that an unknown one stands for; None if there is none.

    ``commands``: of one word, or of a group and a word.
    """
    in_group = (name for name in commands if name.endswith(f" {word}"))
    return _OUTPUTS.get(word) or next(in_group, None)


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
