"""Hugging Face models under hostile plans on four CPU ranks, compared with one process.

Ten steps of AdamW with clipping; the reference runs each document alone, transformers'
attention. The ranks are forked from a process that has imported transformers, and share the work of
the reference.
"""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import transformers

from benchmarks.hostile_plans import RANKS, hostile_plans
from benchmarks.ranks import on_ranks
from benchmarks.tables import Output, Table
from benchmarks.tiny_models import MODELS, REJECTED, VOCAB, make_tiny_model
from seqplan import huggingface, runtime

LONGEST = 300
CLIP_NORM = 1.0
LOSS_LIMIT, NORM_LIMIT = 1e-6, 3e-6
"""Relative differences that fp32 runs may have."""

BF16_FACTOR = 2.0
"""How much larger than one process's the bf16 error of the ranks may be."""


@dataclass(frozen=True)
class Case:
    """A model of the tables and how it is trained."""

    name: str
    targets: str = ""  # "", "mask" or "weights"
    lora: bool = False
    checkpointing: bool = False
    dtype: str = "float32"
    autocast: bool = False
    exact_norms: bool = False
    rows: int = 4096
    compiled: bool = False

    @property
    def rounded(self) -> bool:
        """Whether it computes in bf16."""
        return self.dtype != "float32" or self.autocast

    @property
    def label(self) -> str:
        """Its name in the table."""
        how = [
            self.name,
            *(["LoRA"] if self.lora else []),
            *([f"{self.targets} of the data"] if self.targets else []),
            *(["checkpointing"] if self.checkpointing else []),
            *([self.dtype] if self.dtype != "float32" else []),
            *(["fp32 norms"] if self.exact_norms else []),
            *(["autocast bf16"] if self.autocast else []),
            *(["compiled layers"] if self.compiled else []),
            *([f"{self.rows} tokens' logits at a time"] if self.rows < LONGEST else []),
        ]
        return " · ".join(how)


def list_cases(only: str = "") -> list[Case]:
    """List the cases whose labels begin with ``only``, in the table's order."""
    ways = ("llama", "qwen3_moe", "deepseek_v3")
    every = [
        *(Case(name) for name in MODELS),
        *(Case(name, targets="mask") for name in ways),
        *(Case(name, targets="weights") for name in ways),
        *(Case(name, lora=True, targets="mask") for name in ways),
        *(Case(name, checkpointing=True, targets="weights") for name in ways),
        *(Case(name, compiled=True) for name in ("llama", "gemma2, window of 64")),
        Case("qwen3_moe, router loss", lora=True, checkpointing=True, targets="mask"),
        *(Case(name, rows=32, targets="weights") for name in ("llama", "gemma2, no caps")),
        *(Case(name, dtype="bfloat16") for name in ("llama", "qwen2", "gemma3_text")),
        *(Case(name, autocast=True) for name in ("llama", "qwen2", "gemma3_text")),
        *(
            Case(name, dtype="bfloat16", exact_norms=True, autocast=True)
            for name in ("llama", "qwen2", "gemma3_text")
        ),
        *(
            Case(name, dtype="bfloat16")
            for name in ("gemma2, window of 64", "gpt_oss, window of 64")
        ),
        *(Case(name) for name in REJECTED),
    ]
    return [case for case in every if case.label.startswith(only)]


@dataclass(frozen=True)
class Outcome:
    """Losses and norms by step; or why there are none."""

    losses: list[float]
    norms: list[float]
    rejection: str = ""
    saved_equally: bool = False


def compare_architectures(data: object, only: str = "") -> Output:
    """Compare trained and rejected models; ``SystemExit`` if a limit is exceeded."""
    started, cases = time.monotonic(), list_cases(only)
    models = {case.name for case in cases} & set(MODELS)
    trained = Table(
        "model | loss differs by | norm differs by | saved model read back",
        "{} | {} | {} | {}",
        title=f"{len(models)} architectures, 4 CPU ranks, {len(hostile_plans(LONGEST))} steps each",
    )
    rejected = Table("rejected | with | on every rank", "{} | {} | {}")
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        preload = ("torch._dynamo", "transformers", "benchmarks.architectures")
        by_rank = on_ranks(RANKS, _run_rank, (Path(folder), only), preload)
    references = {number: plain for _, plains in by_rank for number, plain in plains.items()}
    for number, case in enumerate(cases):
        outcomes = [of_rank[number] for of_rank, _ in by_rank]
        first = outcomes[0]
        if not first.rejection:
            cells, faults = _compare(case, first, *references[number])
            trained.add(case.label, *cells)
            failures += [f"{case.label}: {fault}" for fault in faults]
            continue
        same = len({outcome.rejection for outcome in outcomes}) == 1
        rejected.add(case.label, first.rejection, "yes" if same else "no")
        if not same or case.name in MODELS:
            failures.append(f"{case.label}: {first.rejection}")
    yield trained
    yield rejected
    yield f"{time.monotonic() - started:.0f} s"
    if failures:
        raise SystemExit("\n".join(failures))


def _compare(
    case: Case, outcome: Outcome, plain: Outcome, exact: Outcome
) -> tuple[list[str], list[str]]:
    """Compare with plain code: the cells of a row, and what exceeds its limit."""
    faults = [] if outcome.saved_equally else ["the saved model differs"]
    cells = []
    for quantity, limit, mine, ours, true in (
        ("losses", LOSS_LIMIT, outcome.losses, plain.losses, exact.losses),
        ("norms", NORM_LIMIT, outcome.norms, plain.norms, exact.norms),
    ):
        error = _differences(mine, true).max()
        if case.rounded:  # of one step the error may happen to be small
            error, of_one = (_mean_square(some, true) for some in (mine, ours))
            limit = BF16_FACTOR * of_one
        if not error <= limit:
            faults.append(f"{quantity} differ by {error:.1e}, more than {limit:.1e}")
        reference = f" of fp32; one process {of_one:.1e}" if case.rounded else ""
        cells.append(f"{error:.1e}{reference}")
    return [*cells, "bit-equal" if outcome.saved_equally else "no"], faults


def _differences(some: list[float], same: list[float]) -> Any:
    """Return relative differences by step."""
    assert len(some) == len(same)
    return np.abs(np.subtract(some, same) / np.array(same))


def _mean_square(some: list[float], same: list[float]) -> float:
    return float(np.sqrt((_differences(some, same) ** 2).mean()))


def _run_rank(
    rank: int, folder: Path, only: str
) -> tuple[list[Outcome], dict[int, tuple[Outcome, Outcome]]]:
    """Train all cases; also train a share of them in one process, rounded and in fp32."""
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    groups = runtime.Communicators.create()
    cases, outcomes = list_cases(only), []
    for number, case in enumerate(cases):
        try:
            outcome = _train(case, rank, groups, folder / str(number))
        except ValueError as error:
            outcome = Outcome([], [], rejection=" ".join(str(error).split()))
        except Exception:
            traceback.print_exc()
            outcome = Outcome([], [], rejection=f"FAILS: {traceback.format_exc(limit=1)}")
        outcomes.append(outcome)
        dist.barrier(group=groups.control)
    references = {}
    for number in range(rank, len(outcomes), RANKS):
        if not outcomes[number].rejection:
            plain = _train_plainly(case := cases[number])
            exact = _train_plainly(case, exact=True) if case.rounded else plain
            references[number] = plain, exact
    return outcomes, references


def _train(case: Case, rank: int, groups: Any, folder: Path) -> Outcome:
    model = _model(case, seed=rank)  # rank 0's values must win
    if case.compiled:
        for layer in model.model.layers:
            layer.compile(backend="aot_eager")
    job = huggingface.attach(
        model,
        _data(case),
        optimizer=_optimizer,
        autocast=torch.bfloat16 if case.autocast else None,
        loss_rows=case.rows,
        groups=groups,
    )
    results = [job.run(step, clip_norm=CLIP_NORM) for step in job.steps(hostile_plans(LONGEST))]
    job.save_pretrained(folder)
    same = True
    if rank == 0:
        same = _is_saved_equally(case, model, folder)
    losses = [result.loss for result in results]
    return Outcome(losses, [result.gradient_norm for result in results], saved_equally=same)


def _is_saved_equally(case: Case, model: Any, folder: Path) -> bool:
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    if case.lora:
        from peft import PeftModel

        again = PeftModel.from_pretrained(_base(case, seed=0), folder)
    else:
        again = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    stored = dict(again.named_parameters())
    return bool(trained) and all(
        torch.equal(stored[name].to(value.dtype), value) for name, value in trained.items()
    )


def _train_plainly(case: Case, *, exact: bool = False) -> Outcome:
    """Train in one process without plans; ``exact``: in fp32 for every case."""
    model = _model(case, seed=0)
    if exact:
        model = model.float()
    optimizer = _optimizer(list(model.named_parameters()))
    trained = [value for value in model.parameters() if value.requires_grad]
    losses, norms = [], []
    routed = getattr(model.config, "output_router_logits", False)
    for plan in hostile_plans(LONGEST):
        optimizer.zero_grad()
        total, divisor = 0.0, 0.0
        documents, routers = [], []
        for id, length in zip(plan.ids, plan.lengths, strict=True):
            row = _Rows()[id]
            weights = np.ones(length - 1)
            if case.targets:
                weights *= row["mask"][1:length]
            if case.targets == "weights":
                weights *= row["weights"][1:length]
            divisor += float(weights.sum())
            documents.append((torch.from_numpy(row["tokens"][:length]), torch.tensor(weights)))
        for tokens, counts in documents:
            if len(tokens) == 1 and not routed:
                continue
            mixed = case.autocast and not exact
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                # Rotary embeddings forget the document before.
                model(input_ids=tokens[None, :1], use_cache=False)
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                output = model(input_ids=tokens[None], use_cache=False)
            logits = output.logits[0, :-1]
            if routed:
                routers.append(output.router_logits)
            token_losses = torch.nn.functional.cross_entropy(
                logits.float(), tokens[1:], reduction="none"
            )
            loss = (token_losses * counts.float()).sum() / divisor
            loss.backward(retain_graph=routed)  # type: ignore[no-untyped-call]
            total += loss.item()
        if routed:
            lm = model.get_base_model() if case.lora else model
            loss = lm.router_aux_loss_coef * _router_loss(lm, routers)
            loss.backward()
            total += loss.item()
        norms.append(torch.nn.utils.clip_grad_norm_(trained, CLIP_NORM).item())
        optimizer.step()
        losses.append(total)
    return Outcome(losses, norms)


def _router_loss(model: Any, routers: list[tuple[Any, ...]]) -> Any:
    """Return transformers' loss of the routers, of all documents together."""
    together = tuple(torch.cat(layer) for layer in zip(*routers, strict=True))
    function: Any = vars(sys.modules[type(model).__module__])["load_balancing_loss_func"]
    return function(together, model.num_experts, model.num_experts_per_tok)


def _base(case: Case, seed: int) -> Any:
    model = make_tiny_model(case.name, seed).to(getattr(torch, case.dtype))
    if case.exact_norms:
        for name, module in model.named_modules():
            if "norm" in name:
                module.float()
    return model


def _model(case: Case, seed: int) -> Any:
    # Frozen values must be equal on every rank.
    model = _base(case, seed=0 if case.lora else seed)
    if case.lora:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(seed)
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
        for name, value in model.named_parameters():
            if "lora_B" in name:  # 0 at first, so that nothing else would have a gradient
                torch.nn.init.normal_(value, std=0.02)
    model.train()
    if case.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def _optimizer(parameters: Any) -> Any:
    trained = [(name, value) for name, value in parameters if value.requires_grad]
    return torch.optim.AdamW(trained, lr=1e-3, eps=1e-6)


def _data(case: Case) -> Any:
    if not case.targets:
        return runtime.data.SeededTokens(VOCAB, 0)
    weights = "weights" if case.targets == "weights" else None
    return runtime.data.IndexedTargets(_Rows(), "tokens", mask="mask", weights=weights)


class _Rows(Mapping[int, dict[str, Any]]):
    """Columns by sample id, made of the id alone."""

    def __getitem__(self, id: int) -> dict[str, Any]:
        rng = np.random.default_rng(id)
        return {
            "tokens": runtime.data.SeededTokens(VOCAB, 0).tokens(id, 0, LONGEST),
            "mask": rng.random(LONGEST) < 0.6,
            "weights": rng.random(LONGEST),
        }

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return 10_000
