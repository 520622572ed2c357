"""What the command line promises: its verbs, options, help and environment variables."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_forks import CommandProcess
from command_line import call, complaint, fresh_process, succeeded
from planned_files import MAX_LEN, PlannedFiles

from seqplan.api.cli import VERBS, build_parser
from seqplan.planner.placement.kernel import kernel_state
from seqplan.plans.version import VERSION

SURFACE = {
    "lengths": "SOURCE --field --tokenizer --bytes-per-token --chat-template --glob -o/--output "
    "--json",
    "profiles": "NAME|FILE --gpus --max-len --optimizer-shards --json",
    "profile": "--model --hidden --layers --heads --kv-heads --ffn --vocab --head-dim "
    "--tied/--no-tied --device --dtype --schemes --lengths --points --measured-layers --repeats "
    "--checkpointing --hardware --nodes --gpus-per-node --intra-gb-s --inter-gb-s --inter-rails "
    "--peak-tflops --hbm-gb-s --memory-gib --matmul-efficiency --attention-kernel --zero "
    "--precision --fp8-gain --context-parallel --tp-overlap --gradient-bytes "
    "--sequence-parallel/--no-sequence-parallel --capacity-gib "
    "--even-if-busy --name --samples --estimate --complete --merge --plot "
    "-o/--output! --json",
    "refit": "--profile --plans --server --measurements --job --token -o/--output --json",
    "estimate": "--model --hidden --layers --heads --kv-heads --ffn --vocab --head-dim "
    "--tied/--no-tied --hardware! --nodes --gpus-per-node --intra-gb-s --inter-gb-s --inter-rails "
    "--peak-tflops --hbm-gb-s --memory-gib --matmul-efficiency --attention-kernel --tp --pp "
    "--ulysses --ring --seq-len! --batch --micro-batch --zero --checkpointing "
    "--precision --fp8-gain --context-parallel --tp-overlap --gradient-bytes "
    "--sequence-parallel/--no-sequence-parallel --virtual-stages --sync --json",
    "validate-model": "--rows --json",
    "verify-device": "--device --checks --minutes --quick -o/--output --json",
    "propose": "--profile! --gpus! --lengths! --max-len! --tokens --method --seed "
    "--optimizer-shards --include-flagged --schemes --trainer --layout --sync-ms --overlap "
    "--propagation-only --static-groups --lockstep --micro-step-multiple -o/--output --json",
    "plan": "--proposal! --lengths --batches --tokens --steps --seed --packing --static-groups "
    "--window --exact --workers --trainer --executor -o/--output --export --json",
    "check": "plans.jsonl --profile --proposal --prove --exact --json",
    "explain": "plans.jsonl --step! --rank --json --witness --profile --proposal",
    "compare": "--profile! --gpus! --lengths! --max-len! --tokens --steps --seed --systems "
    "--sweep --optimizer-shards --include-flagged --schemes --trainer --layout --search-static "
    "--sync-ms --overlap --lockstep --micro-step-multiple "
    "--optimizer-ms --switch-ms --cbc-seconds --fast "
    "-o/--output --json",
    "trace": "plans.jsonl --step! --profile -o/--output",
    "train-check": "--plans! --ranks! --steps --data --seed --dtype --json",
    "serve": "--store! --files --host --allow-host --port --workers --executor "
    "--keep-steps --abandon-hours --job-days --grace-days --add-token --list-tokens "
    "--revoke-token --scope",
    "sidecar": "--job!",
    "demo": "--lengths --cpu-profile -o/--output",
}
"""Arguments of each verb as scripts use them; ``!``: must be given."""


def parser_of(verb: str) -> argparse.ArgumentParser:
    parser = build_parser({})
    verbs = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    parser: argparse.ArgumentParser = verbs.choices[verb]
    return parser


def test_the_verbs() -> None:
    assert set(SURFACE) <= set(VERBS)
    undocumented = set(VERBS) - set(SURFACE)
    assert not undocumented, "add the verb's arguments to the table"


@pytest.mark.parametrize("verb", SURFACE)
def test_the_arguments_of_a_verb(verb: str) -> None:
    described = []
    for action in parser_of(verb)._actions:
        if "--help" in action.option_strings:
            continue
        if action.option_strings:
            described.append("/".join(action.option_strings) + "!" * action.required)
        else:
            described.append(str(action.metavar))
    assert " ".join(described) == SURFACE[verb]


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_an_example(verb: str) -> None:
    text = succeeded(call(verb, "--help"))
    assert re.search(rf"\n\nexamples?:\n  seqplan {verb}\b", text)
    assert "SUPPRESS" not in text


def test_help_lists_the_verbs_and_an_example() -> None:
    text = succeeded(fresh_process("--help"))
    assert all(re.search(rf"\n    {verb}\s", text) for verb in VERBS)
    assert "example:\n  seqplan propose " in text
    assert succeeded(fresh_process("--version")) == f"seqplan {VERSION}\nfill: {kernel_state()}\n"


def test_the_examples_of_the_help_parse() -> None:
    """Commands in help texts have valid arguments."""
    parser = build_parser({})
    for verb in ("", *VERBS):
        text = succeeded(call(*([verb] if verb else []), "--help"))
        _, _, examples = text.partition("example")
        commands = examples.partition("\n")[2].replace("\\\n", " ").splitlines()
        typed = [part for line in commands for part in line.split("&&")]
        for command in [words for words in map(str.split, typed) if words[:1] == ["seqplan"]]:
            assert parser.parse_args(command[1:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["replan"], "argument COMMAND: invalid choice: 'replan'"),
        (["plan"], "the following arguments are required: --proposal"),
        (["plan", "--proposal", "p"], "one of the arguments --lengths --batches is required"),
        (
            ["plan", "--proposal", "p", "--lengths", "l", "--batches", "b"],
            "argument --batches: not allowed with argument --lengths",
        ),
        (
            ["plan", "--proposal", "p", "--lengths", "l", "--workers", "0"],
            "argument --workers: wants an integer of 1 or more, not '0'",
        ),
        (
            ["plan", "--proposal", "p", "--lengths", "l", "--tokens", "abc"],
            "argument --tokens: wants an integer of 1 or more, not 'abc'",
        ),
        (
            ["plan", "--proposal", "p", "--lengths", "l", "--steps", "-1"],
            "argument --steps: wants an integer of 1 or more, not '-1'",
        ),
        (
            ["plan", "--proposal", "p", "--lengths", "l", "--seed", "1.5"],
            "argument --seed: wants an integer of 0 or more, not '1.5'",
        ),
        (["explain", "p", "--step", "-2"], "argument --step: wants an integer of 0 or more"),
        (["check", "p", "--profile", "a", "--proposal", "b"], "argument --proposal: not allowed"),
        (["check", "p", "--strict"], "unrecognized arguments: --strict"),
        (["propose", "--method", "best"], "argument --method: invalid choice: 'best'"),
    ],
)
def test_usage_errors_are_one_line(arguments: list[str], message: str) -> None:
    line = complaint(call(*arguments))
    assert message in line
    assert "--help)" in line


def test_the_planner_commands_leave_torch_alone(made_script: Path) -> None:
    completed = subprocess.run(
        [sys.executable, made_script], capture_output=True, text=True, check=True
    )
    assert json.loads(completed.stdout.splitlines()[-1]) == []


@pytest.fixture
def made_script(tmp_path: Path, dense: PlannedFiles, lockstep: PlannedFiles) -> Path:
    """Runs every planner command in one process and prints which heavy modules it then has."""
    path = tmp_path / "commands.py"
    commands = [["--help"], *([verb, "--help"] for verb in VERBS), ["profiles"]]
    for plan_files in (dense, lockstep):
        commands += [
            ["lengths", str(plan_files.lengths)],
            ["plan", "--proposal", str(plan_files.proposal), "--lengths", str(plan_files.lengths)],
            ["check", str(plan_files.plans), "--profile", plan_files.profile],
            ["explain", str(plan_files.plans), "--step", "0"],
            ["explain", str(plan_files.plans), "--step", "0", "--rank", "0"],
            [
                *("propose", "--profile", plan_files.profile, "--gpus", "2", "--lengths"),
                *(str(plan_files.lengths), "--max-len", "64", "--tokens", "256"),
            ],
        ]
    path.write_text(
        "import contextlib, json, sys\n"
        "from seqplan.api.cli import main\n"
        f"for command in {commands!r}:\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        code = main(command)\n"
        "        assert code in (0, 3), (command, code)\n"
        "print(json.dumps([name for name in ('torch', 'fastapi') if name in sys.modules]))\n"
    )
    return path


def test_help_is_light() -> None:
    heavy = ("torch", "ortools", "pulp", "fastapi", "pyarrow", "scipy.optimize")
    code = (
        "import sys; from seqplan.api.cli import build_parser; build_parser({}).format_help();"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert completed.stdout == "[]\n"


# Environment


def plan_line(plan_files: PlannedFiles, *arguments: str | int) -> dict[str, object]:
    line: dict[str, object] = json.loads(
        succeeded(call("plan", "--proposal", plan_files.proposal, *arguments)).splitlines()[-1]
    )
    return line


def test_options_from_the_environment(
    lockstep: PlannedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQPLAN_LENGTHS", str(lockstep.lengths))
    monkeypatch.setenv("SEQPLAN_STEPS", "3")
    monkeypatch.setenv("SEQPLAN_SEED", "5")
    line = plan_line(lockstep)
    assert line["step"] == 2
    assert line["provenance"]["seed"] == 5  # type: ignore[index]


def test_addresses_that_kubernetes_sets_are_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SEQPLAN_PORT", "tcp://10.0.0.1:8400")
    monkeypatch.setenv("SEQPLAN_STORE", str(tmp_path / "s.db"))
    for name in ("SEQPLAN_SERVICE_PORT", "SEQPLAN_SERVICE_HOST", "SEQPLAN_PORT_8400_TCP_PORT"):
        monkeypatch.setenv(name, "8400")
    assert call("serve", "--list-tokens").code == 0
    monkeypatch.setenv("SEQPLAN_PORT", "8400 or so")
    assert "--port" in call("serve", "--list-tokens").err


def test_a_flag_goes_before_the_environment(
    lockstep: PlannedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQPLAN_LENGTHS", "nowhere.npy")
    monkeypatch.setenv("SEQPLAN_STEPS", "abc")
    line = plan_line(lockstep, "--lengths", str(lockstep.lengths), "--steps", 1)
    assert line["step"] == 0


def test_the_environment_goes_before_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQPLAN_GPUS", "16")
    rows = json.loads(succeeded(call("profiles", "llama-7b-a800-80gb", "--json")))["schemes"]
    by_scheme = {row["scheme"]: row["max_len"] for row in rows}
    assert by_scheme["tp16"] == 132509
    monkeypatch.setenv("SEQPLAN_JSON", "1")
    assert json.loads(succeeded(call("profiles", "llama-7b-a800-80gb")))["schemes"] == rows
    monkeypatch.setenv("SEQPLAN_JSON", "0")
    assert succeeded(call("profiles")).startswith("profile ")


def test_required_options_may_come_from_the_environment(
    lengths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "PROFILE": "gpt-7b-a100-40gb",
        "GPUS": "8",
        "LENGTHS": str(lengths),
        "MAX_LEN": str(MAX_LEN),
        "OUTPUT": str(tmp_path / "proposal.json"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"SEQPLAN_{name}", value)
    succeeded(call("propose"))
    assert json.loads((tmp_path / "proposal.json").read_text())["max_len"] == MAX_LEN


def test_a_bad_value_in_the_environment_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQPLAN_GPUS", "many")
    assert "argument --gpus: wants an integer of 1 or more, not 'many'" in complaint(
        call("profiles", "llama-7b-a800-80gb")
    )
    # Another verb does not read it.
    succeeded(call("explain", "--help"))


def test_alternatives_in_the_environment(
    lockstep: PlannedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = tmp_path / "batches.jsonl"
    batches.write_text('{"step":41,"lengths":[5]}\n')
    monkeypatch.setenv("SEQPLAN_BATCHES", str(batches))
    assert plan_line(lockstep)["step"] == 41
    # A flag goes before the environment's choice of the other alternative, too.
    line = plan_line(lockstep, "--lengths", str(lockstep.lengths), "--steps", 1)
    assert line["step"] == 0
    monkeypatch.setenv("SEQPLAN_LENGTHS", str(lockstep.lengths))
    assert complaint(call("plan", "--proposal", lockstep.proposal)).startswith(
        "seqplan plan: SEQPLAN_LENGTHS and SEQPLAN_BATCHES exclude each other"
    )
    assert plan_line(lockstep, "--batches", str(batches))["step"] == 41


# Output


def test_a_reader_that_leaves_is_no_error(dense: PlannedFiles, tmp_path: Path) -> None:
    batches = tmp_path / "batches.jsonl"
    batches.write_text("".join(f'{{"lengths":{[7] * 5000}}}\n' for _ in range(40)))
    with CommandProcess(
        *("plan", "--proposal", dense.proposal, "--batches", batches),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as planning:
        assert planning.stdout is not None
        assert planning.stderr is not None
        first = planning.stdout.readline()
        planning.stdout.close()
        stderr = planning.stderr.read()
    assert json.loads(first)["step"] == 0
    assert planning.returncode == 1
    assert "Traceback" not in stderr
    assert "Error" not in stderr


def test_an_encoding_without_our_signs_is_no_error() -> None:
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    text = succeeded(fresh_process("profiles", "llama-32b-a800-80gb", environment=environment))
    assert "43,614" in text
    text = fresh_process("profiles", "--json", environment=environment).out
    assert len(json.loads(text)) == len(json.loads(succeeded(call("profiles", "--json"))))


def test_lengths_of_any_source_serve(lockstep: PlannedFiles, tmp_path: Path) -> None:
    source = tmp_path / "lengths.jsonl"
    values = np.load(lockstep.lengths).tolist()
    source.write_text("".join(f'{{"length": {value}}}\n' for value in values))
    text = succeeded(
        call("plan", "--proposal", lockstep.proposal, "--lengths", source, "--steps", 4)
    )
    assert text == lockstep.plans.read_text()
