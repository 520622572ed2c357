"""Models of transformers that ranks load, evaluate and save in parts, with what a rank holds."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from attached_experts import MODELS, RANKS, SIZES, VOCAB, expert_plans, make_model
from staged_runs import adamw
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from seqplan import runtime

LAYERS = 3
LENGTHS = {0: (5, 9, 3), 1: (7,), 3: (4, 6)}
"""Tokens of each call in an evaluation, by rank; the others call nothing."""


class NewElements(TorchDispatchMode):
    """Counts the fp64 elements of storages made within that live at the same time, at ``most``.

    With all that is copied from files, which are mapped to memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._live: dict[int, tuple[StorageWeakRef, int | None]] = {}
        self._copied = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        given = _list_tensors([arguments, named])
        for value in given:
            self._add(value, 0)
        result = operation(*arguments, **(named or {}))
        mapping = operation is torch.ops.aten.set_.source_Storage
        tensors = _list_tensors(result)
        for value in tensors:
            self._add(value, None if mapping else value.untyped_storage().nbytes())
        if not any(self._is_mapped(value) for value in tensors):
            self._copied += sum(value.nbytes for value in given if self._is_mapped(value))
        if self._count() > self.most:  # some may be gone
            self._live = {key: of for key, of in self._live.items() if not of[0].expired()}
            self.most = max(self.most, self._count())
        return result

    def _count(self) -> int:
        return (sum(count or 0 for _, count in self._live.values()) + self._copied) // 8

    def _is_mapped(self, value: torch.Tensor) -> bool:
        return self._live[value.untyped_storage()._cdata][1] is None

    def _add(self, value: torch.Tensor, count: int | None) -> None:
        storage = value.untyped_storage()
        self._live.setdefault(storage._cdata, (StorageWeakRef(storage), count))


def _list_tensors(values: Any) -> list[torch.Tensor]:
    leaves = tree_leaves(values)
    return [value for value in leaves if isinstance(value, torch.Tensor) and not value.is_meta]


def make_deep(name: str) -> Any:
    """A model whose experts are far more than all else."""
    kinds = MODELS[name].get("layer_types", [])
    return make_model(
        name,
        0,
        num_hidden_layers=LAYERS,
        layer_types=(kinds * LAYERS)[:LAYERS] or None,
        moe_intermediate_size=24,
    )


def count_experts(model: Any) -> int:
    return sum(value.numel() for key, value in model.named_parameters() if ".experts." in key)


def load_and_save(rank: int, world: int, name: str, degree: int, folder: str) -> dict[str, Any]:
    """Write a model, load it in parts, evaluate unequally, save it, and count on the way."""
    from transformers import AutoModelForCausalLM

    from seqplan import huggingface

    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # the counter follows one thread
    whole, stored = make_deep(name), Path(folder) / "loaded" / name
    if not rank:
        whole.save_pretrained(stored)
    dist.barrier()
    experts, rest = count_experts(whole), sum(value.numel() for value in whole.parameters())
    with NewElements() as loading:
        model = huggingface.load_pretrained(
            stored, expert_parallel=degree, dtype=torch.float64, attn_implementation="eager"
        )
    loaded = count_experts(model)
    job = huggingface.attach(
        model, runtime.data.SeededTokens(VOCAB, 5), optimizer=adamw, expert_parallel=degree
    )
    worst, calls = 0.0, []
    for length in LENGTHS.get(rank, ()):
        tokens = torch.arange(length)[None] % VOCAB
        calls.append((tokens, whole(input_ids=tokens).logits.detach()))
    with NewElements() as evaluating, job.evaluation() as evaluated:
        for tokens, expected in calls:
            logits = evaluated(input_ids=tokens).logits
            worst = max(worst, float((logits - expected).abs().max()))
    with NewElements() as saving:
        job.save_pretrained(stored.with_name(f"{name} saved"), max_shard_size="60KB")
    job.close()
    again = AutoModelForCausalLM.from_pretrained(
        stored.with_name(f"{name} saved"), dtype=torch.float64
    )
    read_again = dict(again.named_parameters())
    equal = all(torch.equal(read_again[key], value) for key, value in whole.named_parameters())
    return {
        "experts": experts,
        "rest": rest - experts,
        "loaded": loaded,
        "loading": loading.most,
        "evaluating": evaluating.most,
        "saving": saving.most,
        "worst": worst,
        "equal": equal and read_again.keys() == dict(whole.named_parameters()).keys(),
        "files": sorted(path.name for path in stored.with_name(f"{name} saved").iterdir()),
    }


PAGE = Path(__file__).parents[2] / "docs" / "huggingface.md"


def train_as_the_page(rank: int, world: int, folder: str) -> str:
    """Run the page's function on a loaded model, by plans of a degree; return the stored dtype."""
    from transformers import AutoModelForCausalLM

    from seqplan import huggingface

    names: dict[str, Any] = {"torch": torch, "huggingface": huggingface}
    _, code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(code, names)
    data, saved = runtime.data.SeededTokens(VOCAB, 5), Path(folder) / "as the page"
    plans = iter(expert_plans(RANKS)[:1])
    names["train_in_parts"](Path(folder) / "loaded" / "mixtral", data, plans, RANKS, saved)
    return str(AutoModelForCausalLM.from_pretrained(saved).dtype)


def reject_loading(rank: int, world: int, folder: str) -> dict[str, str]:
    """The messages of models that are not loaded, or not attached, in parts."""
    from seqplan import huggingface

    def attempt(call: Any) -> str:
        try:
            call()
        except (ValueError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        return "done"

    def attach(model: Any, degree: int) -> Any:
        return huggingface.attach(
            model, runtime.data.SeededTokens(VOCAB, 5), optimizer=adamw, expert_parallel=degree
        )

    stored = Path(folder) / "loaded" / "mixtral"
    dense = Path(folder) / "dense"
    if not rank:
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {
            key: SIZES[key]
            for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
        }
        LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4)).save_pretrained(dense)
    dist.barrier()

    lacking = Path(folder) / "lacking"
    if not rank:
        from safetensors.torch import load_file, save_file

        shutil.copytree(stored, lacking)
        (weights,) = lacking.glob("*.safetensors")
        rest = {
            key: value
            for key, value in load_file(weights).items()
            if ".1.block_sparse_moe.exp" not in key
        }
        save_file(rest, weights, metadata={"format": "pt"})
    dist.barrier()

    def load(where: Path, degree: int) -> Any:
        return huggingface.load_pretrained(where, expert_parallel=degree, dtype=torch.float64)

    return {
        "ranks": attempt(lambda: load(stored, 3)),
        "lacking": attempt(lambda: load(lacking, 2)),
        "dense": attempt(lambda: load(dense, 2)),
        "whole": attempt(lambda: attach(load(stored, 2), 1)),
        "degree": attempt(lambda: attach(load(stored, 2), RANKS)),
        "some": attempt(lambda: attach(load(stored, 1 if rank else 2), 2)),
    }
