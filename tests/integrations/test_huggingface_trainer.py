"""Balanced steps in ``transformers.Trainer``: the losses and norms of one process, or an error."""

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trainer_ranks import (
    COST,
    FEW,
    LENGTHS,
    NO_LABEL,
    SAMPLES,
    SEQUENCES,
    STEPS,
    arguments,
    model,
    needs_trainer,
    on_ranks,
    packing,
    planned,
    planned_trainer,
    trained,
)

from seqplan import Cost, Phase
from seqplan.integrations.balanced_steps import BalancedSteps
from seqplan.integrations.recomputation_limits import RecomputationLimits

pytestmark = needs_trainer

Logs = list[dict[str, Any]]


def plain() -> Logs:
    """Every document alone through the model: the mean over a step's labels, clipped SGD."""
    torch.set_num_threads(1)
    reference = model()
    optimizer = torch.optim.SGD(reference.parameters(), lr=1e-2)
    logs = []
    for epoch in range(2):
        for step in planned().epoch(epoch, 1, lockstep=False):
            places = [i for micro in step.micro_batches[0] for i in micro]
            labels = sum(label != NO_LABEL for i in places for label in SAMPLES[i]["labels"][1:])
            total = 0.0
            for i in places:
                ids = torch.tensor([SAMPLES[i]["input_ids"]])
                logits = reference(input_ids=ids, use_cache=False).logits[0, :-1]
                targets = torch.tensor(SAMPLES[i]["labels"][1:])
                loss = torch.nn.functional.cross_entropy(
                    logits, targets, ignore_index=NO_LABEL, reduction="sum"
                )
                (loss / labels).backward()
                total += loss.item() / labels
            norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            logs.append({"loss": total, "grad_norm": float(norm)})
    return logs


@functools.cache
def reference() -> Logs:
    """Of one process without plans."""
    (logs,) = on_ranks(1, plain)
    return logs


@functools.cache
def straight() -> list[Logs]:
    """Of two ranks without any option."""
    return on_ranks(2, trained)


def assert_equal_logs(logs: Logs, tolerance: float = 1e-6) -> None:
    assert len(logs) == 2 * STEPS
    for ours, theirs in zip(logs, reference(), strict=True):
        for name in ("loss", "grad_norm"):
            assert ours[name] == pytest.approx(theirs[name], rel=tolerance), name


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (1, {}),
        (2, {}),
        (2, {"dataloader_num_workers": 1}),
        (2, {"sharded": True}),
        (3, {"sharded": True, "activation_checkpointing": True}),
    ],
    ids=["one", "ddp", "ddp-workers", "fsdp2", "fsdp2-checkpointing"],
)
def test_losses_and_norms_are_those_of_one_process(ranks: int, options: dict[str, Any]) -> None:
    plain = ranks == 2 and not options
    by_rank = straight() if plain else on_ranks(ranks, functools.partial(trained, **options))
    logs = by_rank[0]
    assert_equal_logs(logs)
    assert all(entry["plan/predicted_ms"] > 0 for entry in logs)
    assert all(0 <= entry["plan/gap"] < 1 for entry in logs)
    assert all(entry["plan/planning_ms"] > 0 for entry in logs)
    for entry in logs:
        seconds = entry["plan/measured_ms"] / 1000
        assert entry["plan/tokens"] == pytest.approx(entry["plan/tokens_per_s"] * seconds)
        assert entry["plan/tokens"] > 0


RECOMPUTE = {"none": 60, "elementwise": 110, "full": 160}


@pytest.mark.parametrize(
    ("ranks", "options"),
    [(1, {}), (2, {"activation_checkpointing": True}), (2, {"sharded": True})],
    ids=["one", "ddp", "fsdp2"],
)
def test_micro_batches_run_under_their_modes(ranks: int, options: dict[str, Any]) -> None:
    by_rank = on_ranks(ranks, functools.partial(trained, recompute=RECOMPUTE, **options))
    assert_equal_logs(by_rank[0])
    saved = {mode: size for logs in by_rank for mode, size in logs[0]["saved"].items()}
    assert set(saved) == set(RECOMPUTE)
    assert saved["none"] > 1.2 * saved["elementwise"] > 1.5 * saved["full"]


def test_each_micro_batch_has_the_lightest_mode_that_holds_it() -> None:
    steps = [*planned(recompute=RECOMPUTE).epoch(0, 2, lockstep=False)]
    plain = [*planned().epoch(0, 2, lockstep=False)]
    assert all(step.modes is None for step in plain)
    seen = set()
    for step in steps:
        assert step.modes is not None
        for of_rank, modes in zip(step.micro_batches, step.modes, strict=True):
            for micro_batch, mode in zip(of_rank, modes, strict=True):
                tokens = LENGTHS[micro_batch].sum()
                seen.add(mode)
                assert mode == next(m for m, limit in RECOMPUTE.items() if tokens <= limit)
    assert seen == set(RECOMPUTE)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"none": 10, "full": 159}, "tokens of a micro-batch: 160. No recomputation mode holds"),
        ({"some": 200}, "unknown recomputation mode: some. Give one of none, elementwise"),
        ({"none": 0}, "tokens of mode none: 0. Give a whole number above 0"),
        ({"none": 90, "full": 80}, "mode full: 80. Give a whole number, more than the 90 of the"),
        ({"none+2": 90}, "layers offloaded by mode none+2: 2. Give a share such as none+0.5"),
        ({}, "recomputation modes: none. Give some of"),
    ],
)
def test_bad_limits_of_modes_are_rejected(limits: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        RecomputationLimits(limits).list_modes(160, lambda mode: Cost(0.0, 1.0, 0.0))


def test_unknown_modes_of_steps_are_rejected() -> None:
    with pytest.raises(ValueError, match="unknown recomputation mode: some"):
        planned(recompute={"some": 200})


def test_limits_of_modes_are_read_from_text(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = RecomputationLimits.from_text("full:160, none:60")
    assert list(limits.tokens.items()) == [("none", 60), ("full", 160)]
    with pytest.raises(ValueError, match=r"recomputation limits: 'none'. Give none:4096"):
        RecomputationLimits.from_text("none")
    monkeypatch.setenv("SEQPLAN_RECOMPUTE", "none:60,none:160")
    with pytest.raises(ValueError, match=r"^SEQPLAN_RECOMPUTE: .* has a mode twice\. Give each"):
        RecomputationLimits.from_environment()


def test_modes_that_cannot_be_switched_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = rejected(planned=planned(recompute={"none": 60, "attention_core": 160}))
    assert text == (
        "LlamaForCausalLM cannot switch to recomputation mode: attention_core. "
        "Use none, elementwise, half_products, mlp, full"
    )


@pytest.mark.parametrize(
    ("ranks", "options"),
    [(1, {}), (2, {}), (2, {"sharded": True}), (3, {"few": True})],
    ids=["one", "ddp", "fsdp2", "idle rank"],
)
def test_tokens_of_all_micro_batches_are_counted(ranks: int, options: dict[str, Any]) -> None:
    """Ranks have different numbers of micro-batches; fillers do not count."""
    counting = functools.partial(trained, include_num_input_tokens_seen="all", num_train_epochs=1)
    logs = on_ranks(ranks, functools.partial(counting, **options))[0]
    tokens = np.cumsum([entry["plan/tokens"] for entry in logs])
    assert [entry["num_input_tokens_seen"] for entry in logs] == tokens.tolist()
    assert tokens[-1] == LENGTHS[: FEW if "few" in options else None].sum()
    assert len(tokens) == STEPS


def test_counts_differ_between_ranks_without_lockstep() -> None:
    counts = {
        tuple(len(of_rank) for of_rank in step.micro_batches)
        for epoch in range(2)
        for step in planned().epoch(epoch, 2, lockstep=False)
    }
    assert any(len(set(of_step)) > 1 for of_step in counts), counts


def test_a_run_resumes_within_an_epoch(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 4, "folder": str(tmp_path)}
    on_ranks(2, functools.partial(trained, max_steps=4, **saving))
    resumed = on_ranks(
        2, functools.partial(trained, resume=str(tmp_path / "checkpoint-4"), **saving)
    )[0]
    assert [entry["loss"] for entry in resumed] == [entry["loss"] for entry in straight()[0]]


def test_a_run_with_other_steps_is_not_resumed(tmp_path: Path) -> None:
    saved = arguments(str(tmp_path), max_steps=1, save_strategy="steps", save_steps=1)
    options: dict[str, Any] = {
        "model": model(),
        "train_dataset": SAMPLES,
        "data_collator": packing(),
    }
    planned_trainer()(args=saved, planned=planned(), **options).train()
    others = BalancedSteps(LENGTHS, SEQUENCES // 2, 160, COST, seed=2)
    resumed = planned_trainer()(args=arguments(str(tmp_path)), planned=others, **options)
    message = "BalancedSteps with sequences 12, not 6; seed 1, not 2. Give it the same, or"
    with pytest.raises(ValueError, match=message):
        resumed.train(resume_from_checkpoint=True)


def rejected(**changes: Any) -> str:
    """The message of a trainer that is rejected, at its making or its first step."""
    from seqplan.integrations.huggingface_trainer import UnplannableError

    options: dict[str, Any] = {
        "model": model(),
        "train_dataset": SAMPLES,
        "data_collator": packing(),
        "planned": planned(),
    }
    arguments_ = changes.pop("arguments", {})
    with pytest.raises(UnplannableError) as raised:
        planned_trainer()(args=arguments("unused", **arguments_), **{**options, **changes}).train()
    return str(raised.value)


def test_unsupported_settings_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    both = rejected(arguments={"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4})
    assert "gradient_accumulation_steps must be 1" in both
    assert "per_device_train_batch_size must be 1" in both
    assert "not the mean over all" in rejected(arguments={"average_tokens_across_devices": False})
    assert f"for {len(LENGTHS)} sequences, the data set has 5" in rejected(
        train_dataset=SAMPLES[:5]
    )

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(SAMPLES)

    assert "an iterable data set" in rejected(train_dataset=Stream(), arguments={"max_steps": 2})
    assert "documents of a micro-batch see each other" in rejected(data_collator=seeing)
    # Also if the first document is the first token of the second one, and nothing else.
    equal_firsts = [
        {"input_ids": [3], "labels": [3]},
        *({**s, "input_ids": [3, *s["input_ids"][1:]]} for s in SAMPLES[1:]),
    ]
    lengths = [len(sample["input_ids"]) for sample in equal_firsts]
    short = BalancedSteps(lengths, SEQUENCES, 160, COST, seed=1)
    assert "documents of a micro-batch see each other" in rejected(
        data_collator=seeing, train_dataset=equal_firsts, planned=short
    )
    assert "compute_loss_func ignores num_items_in_batch" in rejected(compute_loss_func=mean_loss)
    assert "model_init: the trainer would make the model anew" in rejected(
        model=None, model_init=lambda: model()
    )
    assert "train_sampling_strategy='sequential'" in rejected(
        arguments={"train_sampling_strategy": "sequential"}
    )


def mean_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """Return the mean over a micro-batch."""
    logits = outputs.logits[0, :-1].float()
    return torch.nn.functional.cross_entropy(logits, labels[0, 1:], ignore_index=-100)


def seeing(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Packs without positions: documents see those before them."""
    ids = [token for sample in samples for token in sample["input_ids"]]
    labels = [label for sample in samples for label in [NO_LABEL, *sample["labels"][1:]]]
    return {"input_ids": torch.tensor([ids]), "labels": torch.tensor([labels])}


def test_a_padding_collator_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def padding(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        longest = max(len(sample["input_ids"]) for sample in samples)
        rows = [s["input_ids"] + [0] * (longest - len(s["input_ids"])) for s in samples]
        return {"input_ids": torch.tensor(rows), "labels": torch.tensor(rows)}

    assert "the collator pads" in rejected(data_collator=padding)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_of_another_length_than_planned_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.chdir(tmp_path)
    quartered = BalancedSteps(LENGTHS // 4 + 1, SEQUENCES, 160, Cost(5e-2, 1.0, 0.0), seed=1)
    text = rejected(planned=quartered, arguments={"dataloader_num_workers": workers})
    match = re.search(r"sample (\d+) has (\d+) tokens, its planned length is (\d+)\. Make", text)
    assert match is not None, text
    place, tokens, length = map(int, match.groups())
    assert (tokens, length) == (LENGTHS[place], LENGTHS[place] // 4 + 1)
    longer = [{key: [*value, 5] for key, value in sample.items()} for sample in SAMPLES]
    assert "Make lengths from the data set" in rejected(train_dataset=longer)


def test_steps_are_the_same_on_every_rank_and_drawn_once_an_epoch() -> None:
    steps = planned()
    assert steps.steps == STEPS
    assert len(steps) == STEPS * SEQUENCES
    for epoch in (0, 1):
        drawn = list(steps.epoch(epoch, 3, lockstep=True))
        places = [i for step in drawn for of_rank in step.micro_batches for m in of_rank for i in m]
        assert sorted(places) == list(range(len(LENGTHS)))
        assert list(steps.epoch(epoch, 3, lockstep=True, first=1)) == drawn[1:]
    with pytest.raises(ValueError, match="a step of 99 sequences cannot be drawn from 36"):
        BalancedSteps(LENGTHS, 99, 160, Cost(0.0, 1.0, 0.0))
    with pytest.raises(ValueError, match="a micro-batch holds 100"):
        BalancedSteps(np.append(LENGTHS, 150), 12, 100, Cost(0.0, 1.0, 0.0))
    read_once: Any = (length for length in LENGTHS)
    assert len(BalancedSteps(read_once, 12, 160, Cost(0.0, 1.0, 0.0))) == len(LENGTHS)
    for options in ({"sequences": 0}, {"sequences": 8.0}, {"sequences": "8"}, {"seed": -1}):
        name = next(iter(options))
        wrong: Any = {"sequences": 12, "capacity": 160, "cost": Cost(0.0, 1.0, 0.0)} | options
        with pytest.raises(ValueError, match=f"^{name} must be a whole number of "):
            BalancedSteps(LENGTHS, **wrong)


@pytest.mark.parametrize("lockstep", [True, False])
def test_slower_ranks_get_less(lockstep: bool) -> None:
    cost, slowdown = Cost(0.0, 1.0, 0.0), [1.0, 2.0, 1.0]
    steps = BalancedSteps(LENGTHS, SEQUENCES, 160, cost, seed=1, slowdown=slowdown)
    tokens = [0, 0, 0]
    for step in steps.epoch(0, 3, lockstep=lockstep):
        for rank, of_rank in enumerate(step.micro_batches):
            tokens[rank] += sum(int(LENGTHS[i]) for micro in of_rank for i in micro)
    assert sum(tokens) == int(LENGTHS.sum())
    assert tokens[1] < 0.75 * min(tokens[0], tokens[2])
    with pytest.raises(ValueError, match="slowdown: rank 1 is lost"):
        BalancedSteps(LENGTHS, SEQUENCES, 160, cost, slowdown=[1.0, None])  # type: ignore[list-item]


@pytest.mark.parametrize("lockstep", [True, False])
def test_steps_balance_images_as_well(lockstep: bool) -> None:
    """Images of every third sample take ten times as long as its text."""
    images = [10 * int(n) if i % 3 == 0 else 0 for i, n in enumerate(LENGTHS)]
    vision = Phase("vision", images, Cost(0.0, 1.0, 0.0))
    text = Phase("text", LENGTHS.tolist(), Cost(0.0, 1.0, 0.0), capacity=160)
    steps = BalancedSteps(None, SEQUENCES, loads=[vision, text], seed=1)
    plain = BalancedSteps(LENGTHS, SEQUENCES, 160, Cost(0.0, 1.0, 0.0), seed=1)

    def work(planned: BalancedSteps) -> float:
        """Σ of the slowest rank's images (ms)."""
        return sum(
            max(sum(images[i] for micro in of_rank for i in micro) for of_rank in s.micro_batches)
            for s in planned.epoch(0, 3, lockstep=lockstep)
        )

    assert sorted(
        i
        for s in steps.epoch(0, 3, lockstep=lockstep)
        for r in s.micro_batches
        for m in r
        for i in m
    ) == list(range(len(LENGTHS)))
    assert work(steps) < work(plain)
    steps.check_length(0, int(LENGTHS[0]))
    with pytest.raises(ValueError, match="loads with capacity: each load states it"):
        BalancedSteps(None, SEQUENCES, 160, loads=[vision, text])
