"""The CUDA path on a machine without a GPU: host waits, copies, launches, bytes, NCCL's rules.

Values and times are not rehearsed. Run by ``./run rehearse`` alone.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from build import build, why_not
from jsonschema import Draft202012Validator

HERE = Path(__file__).parent
SCHEMA = json.loads((HERE.parents[1] / "docs" / "verified.schema.json").read_text("utf-8"))

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "a rehearsal")

CASES = (
    *("module u1", "staged tp4.pp2", "restore fused", "groups", "match r4", "peak tp1 none"),
    *("verify rates", "values", "example", "module experts"),
    *("module u8", "module u2.r4", "module by parameter", "module by micro-batch"),
    *("module r8", "module modes", "module non-blocking", "match experts u1"),
    *("module targets", "staged non-blocking"),
    *("staged u8", "staged r8", "staged tp2.u4", "staged tp2.u2.r2", "staged pp2.r2"),
    *("staged by parameter", "staged modes", "restore foreach", "match tp2.u2", "match pp2.u2"),
    *("staged over nodes", "match over nodes"),
    *("module experts alone", "staged experts", "match experts u4", "match experts pp2.u2"),
    *("peak tp1 full", "peak u8 none", "peak u8 full", "peak r8 none", "peak r8 full"),
    *("peak tp4.pp2 none", "peak tp4.pp2 full"),
    *("peak tp4.pp2 last stage none", "peak tp4.pp2 last stage full"),
    *("verify attention", "verify profile", "verify memory", "verify step", "verify ranks", "sync"),
    *("attached Llama", "attached Mistral", "attached Gemma2", "attached Qwen3Moe"),
    *("attached GptOss", "attached experts"),
    *("launches u1", "launches u8", "launches r8", "launches r8 gathered"),
    *("staged by fa3", "staged by fa4", "staged by cudnn", "staged by flex", "staged by magi"),
)
STEPS = tuple(name for name in CASES if name.startswith(("module", "staged", "attached")))
DEVICE = tuple(name for name in CASES if name.startswith(("verify", "values", "sync", "example")))

ALLOWED_WAITS = {
    "runtime/training/run_step.py": "the norm and the loss of a step",
    "runtime/losses/token_losses.py": "the count of labels, at the end of a step",
    "runtime/stopwatch.py": "the time that an attached model's job reports",
    "runtime/states/gradient_reduction.py": "the micro-batches of the step's ranks",
    "runtime/experts/micro_steps.py": "the recomputation of other ranks with the same experts",
    "runtime/experts/dispatch.py": "the rows of each expert, in each layer",
}
"""Files whose lines may let the host wait for the device, once a step, or as stated."""

TWO_WAITS = ("module targets", "module by micro-batch", "module experts alone", "attached")
"""Cases that wait for counts of labels or micro-batches, for modes, or for the end of a step."""

MOST_OF_EXPERTS = {
    "module experts": 4 * (1 + 2),
    "module experts alone": 2,
    "staged experts": 4 * 2,
    "attached experts": 2,
}
"""Waits for counts of experts: once a layer and micro-batch, again if it is recomputed."""

MOST_LAUNCHES = {
    "module u1": 77,
    "module u8": 90,
    "module r8": 193,
    "staged u8": 95,
    "staged r8": 229,
}
"""Launches of a step for each of four layers, with those of embedding, loss, optimizer and norm,
which are 20 to 25 of each. They may fall.

Ring 8 passes one document round the ring in the module, and gathers three more when staged."""

MOST_OF_LAYER = {"u1": 47, "u8": 60, "r8": 163, "r8 gathered": 194}
"""Launches that a layer adds to a micro-batch, forward and backward. They may fall."""

MOST_GROUPS = 16
"""Calls that make the process groups of 1,024 ranks, tp groups of all powers of two among them."""

BYTES_ERROR = 0.05
"""Maximum difference of counted bytes from those of the memory model, relative."""

KEPT_BYTES = 64 * 1024
"""Indices of attention calls that stay on the device."""

VALUES, TIMES = [1024], [5] * 4
"""Tokens of the sequences with values; times of each measurement of the sync."""

Recorded = Mapping[str, Any]


def rehearse(libraries: Path, *arguments: str) -> dict[str, Recorded]:
    """Run cases in a separate process."""
    command = [sys.executable, str(HERE / "rehearse.py"), str(libraries), *arguments]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert completed.returncode == 0, completed.stderr[-2000:]
    results = map(json.loads, completed.stdout.splitlines())
    return {result["case"]: result for result in results}


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shims")
    build(folder)
    return folder


@pytest.fixture(scope="session")
def recorded(libraries: Path) -> dict[str, Recorded]:
    return rehearse(libraries, *CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_case_runs_to_its_end(recorded: dict[str, Recorded], name: str) -> None:
    assert "error" not in recorded[name], recorded[name]["trace"]


def find_waits(result: Recorded) -> list[str]:
    """Waits of a step that are not allowed, and all of its preparation."""
    waits = [
        wait for wait in result["step"]["waits"] if not any(path in wait for path in ALLOWED_WAITS)
    ]
    return [*waits, *result["prepare"]["waits"]]


def find_pageable(result: Recorded) -> list[str]:
    """Copies from memory that is not pinned."""
    copies = [*result["prepare"]["copies"], *result["step"]["copies"]]
    return [copy for copy in copies if not copy.startswith("pinned")]


@pytest.mark.parametrize("name", STEPS)
def test_the_host_waits_at_the_end_of_a_step_alone(
    recorded: dict[str, Recorded], name: str
) -> None:
    """Lengths are new in every step, as in training."""
    assert find_waits(recorded[name]) == []
    most = 0 if "non-blocking" in name else 2 if name.startswith(TWO_WAITS) else 1
    waits = recorded[name]["step"]["waits"]
    of_layers = sum(n for wait, n in waits.items() if "experts/dispatch" in wait)
    assert sum(waits.values()) - of_layers <= most
    assert of_layers == MOST_OF_EXPERTS.get(name, 0)


@pytest.mark.parametrize("name", STEPS)
def test_copies_to_the_device_are_pinned(recorded: dict[str, Recorded], name: str) -> None:
    assert find_pageable(recorded[name]) == []


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_prepared_by_one_copy(recorded: dict[str, Recorded], name: str) -> None:
    assert sum(recorded[name]["prepare"]["copies"].values()) == 1


@pytest.mark.parametrize("name", [*STEPS, *DEVICE])
def test_nccl_and_streams_are_used_by_their_rules(recorded: dict[str, Recorded], name: str) -> None:
    assert recorded[name]["faults"] == {}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_leaves_nothing_on_the_device(recorded: dict[str, Recorded], name: str) -> None:
    assert recorded[name]["leaked"] <= KEPT_BYTES


def find_other_bytes(result: Recorded) -> dict[str, tuple[float, float]]:
    """Kinds of bytes that the memory model counts otherwise: counted and expected."""
    counted, expected = result["counted"], result["expected"]
    least = 0.001 * sum(expected.values())
    return {
        kind: (counted[kind], expected[kind])
        for kind in expected
        if abs(counted[kind] - expected[kind]) > max(BYTES_ERROR * expected[kind], least)
    }


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("peak")])
def test_bytes_are_those_of_the_memory_model(recorded: dict[str, Recorded], name: str) -> None:
    assert find_other_bytes(recorded[name]) == {}


def test_process_groups_of_a_large_job_take_few_calls(recorded: dict[str, Recorded]) -> None:
    assert recorded["groups"]["groups"] <= MOST_GROUPS
    assert recorded["groups"]["degree"] == 1024
    assert recorded["groups"]["faults"] == {}


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("verify")])
def test_checks_of_a_device_have_figures(recorded: dict[str, Recorded], name: str) -> None:
    assert recorded[name]["figures"] > 2
    assert not [note for note in recorded[name]["notes"] if "out of memory" in note]
    assert Draft202012Validator(SCHEMA).is_valid(recorded[name]["document"])


def test_sequences_of_a_rank_have_their_values(recorded: dict[str, Recorded]) -> None:
    """The other rank has the tokens of the other sequences."""
    assert recorded["values"]["lengths"] == VALUES


def list_trained(result: Recorded) -> list[int]:
    """Steps that the example printed."""
    return [json.loads(line)["step"] for line in result["lines"]]


def test_the_example_trains(recorded: dict[str, Recorded]) -> None:
    assert list_trained(recorded["example"]) == [0]


def test_the_sync_is_measured(recorded: dict[str, Recorded]) -> None:
    assert recorded["sync"]["times"] == TIMES


def launches_per_layer(result: Recorded) -> float:
    """Launches of a step for each layer and micro-batch, those of its ends included."""
    return float(result["step"]["launches"] / result["layers"] / result["micro_batches"])


CALLS_OF_KERNELS = {
    "fa3": "_flash_attention_backward",
    "fa4": "_flash_attention_backward",
    "cudnn": "_scaled_dot_product_cudnn_attention_backward",
    "flex": "flex_attention_backward",
    "magi": "flex_flash_attention_backward",
}


@pytest.mark.parametrize("name", [name for name in STEPS if name.startswith("staged by ")])
def test_the_requested_kernel_runs(recorded: dict[str, Recorded], name: str) -> None:
    kernel = name.removeprefix("staged by ")
    if kernel in CALLS_OF_KERNELS:
        assert recorded[name]["step"]["by_operation"][CALLS_OF_KERNELS[kernel]] > 0
        assert recorded[name]["implementation"] == {"fa3": "FA3", "fa4": "FA4"}.get(kernel)


@pytest.mark.parametrize("name", [name for name in STEPS if name in MOST_LAUNCHES])
def test_launches_do_not_grow(recorded: dict[str, Recorded], name: str) -> None:
    assert launches_per_layer(recorded[name]) <= MOST_LAUNCHES[name]


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("launches")])
def test_launches_of_a_layer_do_not_grow(recorded: dict[str, Recorded], name: str) -> None:
    assert recorded[name]["of_layer"] <= MOST_OF_LAYER[name.removeprefix("launches ")]


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("match")])
def test_the_logs_of_all_ranks_match(recorded: dict[str, Recorded], name: str) -> None:
    assert recorded[name]["mismatches"] == []
    assert recorded[name]["events"] > 50


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("restore")])
def test_counts_of_steps_are_where_the_optimizer_needs_them(
    recorded: dict[str, Recorded], name: str
) -> None:
    where = "cuda" if name == "restore fused" else "cpu"
    assert recorded[name]["devices"] == {"step": [where], "exp_avg": ["cuda"]}


@pytest.mark.parametrize(
    ("mutation", "case"),
    [
        ("wait", "module u1"),
        ("pageable", "module u1"),
        ("copies", "module u1"),
        ("stream", "module u1"),
        ("relays", "staged over nodes"),
        ("preparation", "module u1"),
        ("host", "module r8"),
        ("transposed", "module r8"),
        ("leak", "module u1"),
        ("launches", "module u1"),
        ("activations", "peak tp1 none"),
        ("states", "peak tp1 full"),
        ("groups", "groups"),
        ("alone", "module u1"),
        ("counts", "restore fused"),
        ("figures", "verify rates"),
        ("values", "values"),
        ("sync", "sync"),
        ("example", "example"),
        ("sizes", "match r4"),
        ("tokens", "match experts u1"),
    ],
)
def test_planted_errors_are_found(libraries: Path, mutation: str, case: str) -> None:
    (result,) = rehearse(libraries, "--mutation", mutation, case).values()
    assert "error" not in result, result["trace"]
    found = {
        "wait": lambda: find_waits(result),
        "pageable": lambda: find_pageable(result),
        "copies": lambda: sum(result["prepare"]["copies"].values()) > 1,
        "stream": lambda: result["faults"],
        "relays": lambda: result["faults"],
        "preparation": lambda: find_waits(result),
        "host": lambda: result["faults"],
        "transposed": lambda: result["faults"],
        "leak": lambda: result["leaked"] > KEPT_BYTES,
        "launches": lambda: launches_per_layer(result) > MOST_LAUNCHES[case],
        "activations": lambda: find_other_bytes(result).keys() == {"layers"},
        "states": lambda: "states" in find_other_bytes(result),
        "groups": lambda: result["groups"] > MOST_GROUPS,
        "alone": lambda: result["faults"],
        "counts": lambda: result["devices"]["step"] != ["cuda"],
        "figures": lambda: not Draft202012Validator(SCHEMA).is_valid(result["document"]),
        "values": lambda: result["lengths"] != VALUES,
        "sync": lambda: result["times"] != TIMES,
        "example": lambda: list_trained(result) != [0],
        "sizes": lambda: result["mismatches"],
        "tokens": lambda: result["mismatches"],
    }[mutation]()
    assert found
