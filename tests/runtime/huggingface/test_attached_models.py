"""Hugging Face models on four ranks, compared with transformers in one process.

The table of many architectures is a benchmark, ``./run bench architectures``; here a few models try
every part of a job.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from attached_again import attach_again
from attached_inputs import CASES, RANKS, Rows, data, plans
from attached_rejections import REJECTED
from attached_scenarios import load, meanwhile, on_rank, rejected_on_rank
from attached_training import examples
from free_port import free_port
from plan_builder import write_file
from plan_service import PlanService, serving
from started_on_meta import start_on_meta
from transformers_ranks import Program, needs_transformers, run_with_transformers

pytestmark = needs_transformers


@pytest.fixture(scope="module")
def every_outcome() -> Any:
    ports = [free_port(), free_port()]
    with tempfile.TemporaryDirectory() as folder:
        write_file(Path(folder) / "plans.jsonl", plans())
        with serving(PlanService(plans())) as service:
            arguments = Path(folder), f"{service.url}/v1/jobs/a%20job"
            ran = run_with_transformers(
                [
                    Program(on_rank, RANKS, arguments, meanwhile=meanwhile),
                    Program(examples, 2, (ports, Path(folder)), joined=False),
                    Program(rejected_on_rank, 2, ()),
                    Program(start_on_meta, 2, ()),
                    Program(attach_again, 2, ()),
                ],
                first=load,
            )
        assert sorted((ack["step"], ack["rank"]) for ack in service.acks) == [
            (plan.step, rank) for plan in plans() for rank in range(RANKS)
        ]
        return ran


@pytest.fixture(scope="module")
def outcomes(every_outcome: Any) -> Any:
    return every_outcome[0]


@pytest.fixture(scope="module")
def rejected(every_outcome: Any) -> Any:
    return every_outcome[2][0]


@pytest.mark.parametrize("name", CASES)
def test_losses_and_norms_are_those_of_plain_code(outcomes: Any, name: str) -> None:
    ranks, plain = outcomes
    for mine in (rank[name] for rank in ranks):
        assert mine["losses"] == pytest.approx(plain[name]["losses"], rel=1e-6)
        assert mine["norms"] == pytest.approx(plain[name]["norms"], rel=3e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_saved_model_is_read_back_as_it_was(outcomes: Any, name: str) -> None:
    assert all(rank[name]["equal"] for rank in outcomes[0])


@pytest.mark.parametrize("name", CASES)
def test_log_probabilities_come_back_whole_in_the_batchs_order(outcomes: Any, name: str) -> None:
    ranks, plain = outcomes
    for mine in (rank[name]["values"] for rank in ranks):
        assert [id for id, _ in mine] == [id for id, _ in plain[name]["values"]]
        for (id, values), (_, expected) in zip(mine, plain[name]["values"], strict=True):
            counts = Rows()[id]["mask"][: len(values)]
            counts[0] = False
            assert values[~counts] == pytest.approx(0)
            assert values[counts] == pytest.approx(expected[counts[1:]], abs=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_local_batches_between_steps_see_the_values_after_the_step(
    outcomes: Any, name: str
) -> None:
    ranks, plain = outcomes
    for mine in (rank[name] for rank in ranks):
        assert mine["logits"] == pytest.approx(plain[name]["logits"], abs=2e-5)
        assert mine["attention"] == "seqplan"  # for the steps that followed


def test_callbacks_get_predicted_and_measured_time(outcomes: Any) -> None:
    ranks, _ = outcomes
    busy = [report for rank in ranks for report in rank["llama"]["reports"] if report.measured_ms]
    idle = [report for rank in ranks for report in rank["llama"]["reports"] if report not in busy]
    assert busy
    assert all(report.predicted_ms > 0 and report.step_ms >= report.measured_ms for report in busy)
    assert all(report.predicted_ms == 0 for report in idle)
    first = ranks[0]["llama"]["reports"]
    assert [report.step for report in first] == [0, 1, 2]
    assert [rate for report in first for rate in report.learning_rates[:1]] == pytest.approx(
        [0.001, 0.004, 0.007]
    )


@pytest.mark.parametrize("name", REJECTED)
def test_inexact_models_are_rejected_by_name_on_every_rank(rejected: Any, name: str) -> None:
    messages = {rank["rejections"][name] for rank in rejected}
    assert len(messages) == 1
    assert REJECTED[name][1] in messages.pop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": [{"input_ids": [1, 2]}]}, "data must be token data, such as .*, not list"),
        ({"optimizer": None}, "optimizer must be a function, not NoneType"),
        ({"scheduler": 5}, "scheduler must be a function, not int"),
        ({"callbacks": [5]}, "callbacks must be functions, not int"),
        ({"autocast": "bf16"}, "autocast must be a floating dtype, such as torch.bfloat16: 'bf16'"),
        ({"loss_rows": 1.5}, "loss_rows: 1.5. Give a whole number"),
        ({"expert_parallel": "2"}, "expert_parallel: '2'. Give a whole number"),
        ({"expert_row_limit": True}, "expert_row_limit: True. Give a whole number"),
        ({"resident_bytes": "7"}, "resident_bytes: '7'. Give bytes as a number"),
        ({"resident_bytes": float("nan")}, "resident_bytes: nan. Give bytes above 0"),
    ],
)
def test_wrong_arguments_are_rejected_first(options: dict[str, Any], message: str) -> None:
    from seqplan import huggingface

    with pytest.raises((TypeError, ValueError), match=message):
        huggingface.attach(torch.nn.Linear(2, 2), **{"data": data(), "optimizer": list, **options})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mixing", "after the last layer a token depends on what else is in the call"),
        ("skipping", "layers 1 do not attend by transformers' attention interface"),
        ("masking", "layer 1 passes a custom mask to attention"),
        ("numbering", "layer 1 numbers the rows of a call by itself"),
        ("windowing", "layer 1 passes a window of 8 but a mask with another to attention"),
        ("base", "is not trained and has other values"),
        ("biased", "attends by 'biased' (attn_implementation), which may add biases"),
        ("head", "in the logits a token depends on what else is in the call"),
        ("training", "in training mode: something outside attention mixes tokens"),
        ("far", "a token depends on what else is in the call"),
        ("counting", "layer 1 numbers the rows of a call by itself"),
        ("normalizing", "layers.0.more (BatchNorm1d) normalizes over all tokens of a call"),
        ("no model", "Linear is no causal language model of transformers"),
        ("owns nothing", "ValueError: optimizer got an empty parameter list"),
        ("kernel", "kernel 'cudnn' does not support the model's attention: the device is cpu"),
        ("muon", "Muon needs whole parameters: sharding must be 'by_parameter', not 'flat'"),
        ("of others", "the optimizer has none of the job's parameters. Make it of those"),
        ("plateau", "scheduler: ReduceLROnPlateau, whose step needs a metric. Make it of job.opt"),
        ("nothing", "optimizer must return a torch.optim.Optimizer, not NoneType"),
    ],
)
def test_unsupported_modules_are_detected(rejected: Any, name: str, message: str) -> None:
    assert all(message in rank["rejections"][name] for rank in rejected)


def test_random_numbers_of_training_are_permitted(rejected: Any) -> None:
    for rank in rejected:
        assert not [case for case in rank["rejections"] if case.startswith("random")]


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from seqplan import huggingface

    for name in [name for name in sys.modules if name.startswith("seqplan.runtime.huggingface.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'seqplan\[runtime,huggingface\]'"):
        _ = huggingface.attach


def test_unsupported_plans_are_rejected_on_every_rank_before_the_step(outcomes: Any) -> None:
    for messages in (rank["unlike"] for rank in outcomes[0]):
        assert len(messages) == 3
        assert "step 1: rank 2 has the plan sha256:" in messages[0]
        assert messages[1] == "rank 1: no lengths"
        assert messages[2].startswith("step 0: sample 5 has other tokens on rank 3 than on rank 0")


def test_held_bytes_are_counted(rejected: Any) -> None:
    """2 bytes a parameter and 4 a gradient, 12 over the ranks; padding is less than a hundredth."""
    for held in (rank["memory"] for rank in rejected):
        whole, trained, _ = held["whole"]
        assert whole.parameters == pytest.approx(2 * trained, rel=0.01)
        assert whole.gradients == pytest.approx(4 * trained, rel=0.01)
        assert whole.states == pytest.approx(12 * trained / len(rejected), rel=0.01)
        adapters, trained, frozen = held["adapters"]
        assert adapters.parameters == pytest.approx(4 * trained, rel=0.1)
        assert adapters.frozen == pytest.approx(4 * frozen, rel=0.02)  # and buffers
        assert held["adapters message"].startswith("a rank holds ")
        assert ", frozen " in held["adapters message"]
        assert "the profile that plans are made with counts" in held["too much"]


def test_a_job_goes_on_bit_for_bit(outcomes: Any) -> None:
    for mine in (rank["resumed"] for rank in outcomes[0]):
        assert mine["parts"] == mine["straight"]
        assert mine["user"] == {"seen": [1, 2]}
        assert mine["empty"] is None


def test_the_program_of_the_page_trains(outcomes: Any) -> None:
    assert [rank["page"] for rank in outcomes[0]] == [(len(plans()), "torch.bfloat16")] * RANKS


def test_the_example_of_fine_tuning_learns_the_answers(every_outcome: Any) -> None:
    ranks, _ = every_outcome[1]
    losses = [rank[0] for rank in ranks]
    assert losses[0] == losses[1]
    assert losses[0][-1] < 0.6 * losses[0][0]
    assert [rank[2] for rank in ranks] == [32, 32]


def test_the_example_of_a_policy_gradient_is_rewarded(every_outcome: Any) -> None:
    ranks, _ = every_outcome[1]
    rewards = [rank[1] for rank in ranks]
    assert rewards[0] == rewards[1]
    assert sum(rewards[0][-2:]) > sum(rewards[0][:2]) + 0.2


def test_ranks_without_values_take_those_of_the_first(every_outcome: Any) -> None:
    assert every_outcome[3][0] == [([], 0.0), ([], 0.0)]


def test_a_model_is_as_it_was_after_a_job_and_can_be_attached_again(every_outcome: Any) -> None:
    for rank in every_outcome[4][0]:
        once, twice = rank["once"], rank["twice"]
        assert [loss for job in twice for loss in job["losses"]] == once["losses"]
        assert twice[-1]["after"] == pytest.approx(once["after"])
        for job in (once, *twice):
            assert job["after"] == pytest.approx(job["within"])


def test_jobs_that_are_closed_leave_no_groups(every_outcome: Any) -> None:
    for rank in every_outcome[4][0]:
        assert rank["threads"][-1] <= rank["threads"][0]


def test_the_model_of_an_open_job_is_rejected(every_outcome: Any) -> None:
    for rank in every_outcome[4][0]:
        assert "is attached to a job: close that job first" in rank["rejected"]
