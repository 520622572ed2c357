"""What the command line promises: its commands, options, help and environment variables."""

import argparse
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from command_forks import CommandProcess
from command_line import call, fresh_process, succeeded
from fresh_python import run_python
from planned_files import PlannedFiles

from seqplan.api.cli import COMMANDS, build_parser
from seqplan.api.cli.framework.commands import GROUPS
from seqplan.planner.placement.fill import kernel_state
from seqplan.plans.version import VERSION

SURFACE = {
    "lengths": "SOURCE --field --tokenizer --glob -o/--output --json",
    "profile list": "--json",
    "profile show": "NAME|FILE --gpus --max-len --optimizer-shards --json",
    "profile measure": "--model! --device --dtype --schemes --lengths --expert-parallel --points "
    "--kernel --measured-layers --repeats --recompute --capacity-gib "
    "--even-if-busy --samples --host-memory-gib --gpus-per-node --name --plot -o/--output! --json",
    "profile derive": "--model --profile --hardware! --nodes --gpus-per-node "
    "--precision --context-parallel --tp-overlap --gradient-bytes "
    "--sequence-parallel/--no-sequence-parallel --stack --dispatcher --expert-imbalance "
    "--expert-parallel --zero --recompute --loss --schemes --name -o/--output! --json",
    "profile merge": "samples.jsonl --capacity-gib! --host-memory-gib --gpus-per-node --name "
    "--plot -o/--output! --json",
    "profile refit": "--profile --plans --server --measurements --job --token --ca -o/--output "
    "--json",
    "profile verify": "--device --checks --kernel --minutes --quick -o/--output --json",
    "profile validate": "--rows --json",
    "estimate": "--model! --hardware! --nodes --gpus-per-node --tp --pp "
    "--ulysses --ring --expert-parallel --expert-tensor-parallel --seq-len! --batch "
    "--micro-batch --zero --recompute --loss "
    "--precision --context-parallel --tp-overlap --gradient-bytes "
    "--sequence-parallel/--no-sequence-parallel --stack --dispatcher --expert-imbalance "
    "--optimizer-shards "
    "--offload-optimizer --offload-parameters --tiled-mlp --virtual-stages --sync --json",
    "propose": "DATA --profile! --gpus! --max-len! --tokens --method --seed --optimizer-shards "
    "--schemes --trainer --sync --execution --micro-step-multiple -o/--output --json",
    "plan": "DATA --proposal --profile --model --hardware --gpus --max-len --tokenizer --tokens "
    "--steps --seed --packing --execution --window --exact --slowdown --robust --workers "
    "--trainer -o/--output --json",
    "export": "plans.jsonl -o/--output!",
    "check plans": "plans.jsonl --profile --proposal --prove --exact --json",
    "explain": "plans.jsonl --step! --rank --json --witness --profile --proposal",
    "compare": "DATA --profile! --gpus! --max-len! --tokens --steps --seed --systems --sweep "
    "--optimizer-shards --schemes --trainer --sync --execution --micro-step-multiple --assume "
    "--robust -o/--output --json",
    "trace": "plans.jsonl --step! --profile -o/--output",
    "check training": "--plans! --ranks! --steps --data --seed --dtype --json",
    "serve": "--store! --files --host --allow-host --port --rate-limit --workers "
    "--keep-steps --abandon-hours --job-days --grace-days --add-token --list-tokens "
    "--revoke-token --scope --token-job --token-days --log",
    "sidecar": "--job! --log",
    "log": "--server --store --plans --job --after --token --ca --json --to --run --measurements "
    "--profile",
    "backup": "STORE --files -o/--output!",
    "restore": "FILE --store! --files",
    "completion": "SHELL",
    "demo": "--lengths --cpu-profile -o/--output",
}
"""Arguments of each command as scripts use them; ``!``: must be given."""

MOST_OPTIONS = 18
LARGER = {"estimate": 33, "plan": 20, "profile derive": 22, "profile measure": 20}
"""Commands with more options, and how many at most."""


def parser_of(command: str) -> argparse.ArgumentParser:
    parser = build_parser({}, [command])
    for word in command.split():
        (action,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        parser = action.choices[word]
    return parser


def test_every_command_is_in_the_table() -> None:
    assert sorted(SURFACE) == sorted(COMMANDS)


@pytest.mark.parametrize("command", SURFACE)
def test_arguments_of_a_command(command: str) -> None:
    described = []
    options = 0
    for action in parser_of(command)._actions:
        if "--help" in action.option_strings:
            continue
        options += sum(option.startswith("--") for option in action.option_strings)
        if action.option_strings:
            described.append("/".join(action.option_strings) + "!" * action.required)
        else:
            described.append(str(action.metavar))
    assert " ".join(described) == SURFACE[command]
    assert options <= LARGER.get(command, MOST_OPTIONS)


def test_help_lists_the_commands_and_an_example() -> None:
    text = succeeded(fresh_process("--help"))
    for name in {command.split()[0] for command in COMMANDS}:
        assert re.search(rf"\n    {name}\s", text)
    assert "example:\n  seqplan propose " in text
    assert succeeded(fresh_process("--version")) == f"seqplan {VERSION}\nfill: {kernel_state()}\n"


@pytest.mark.parametrize("group", GROUPS)
def test_help_of_a_group_lists_its_commands(group: str) -> None:
    text = succeeded(call(group, "--help"))
    for command, described in COMMANDS.items():
        if command.startswith(f"{group} "):
            line = rf"\n    {command.split()[1]}\s+{re.escape(described.help)}\n"
            assert re.search(line, text)


def test_help_shows_examples_that_parse() -> None:
    parser = build_parser({})
    for command in ("", *COMMANDS):
        text = succeeded(call(*command.split(), "--help"))
        assert "SUPPRESS" not in text
        _, _, examples = text.partition("\n\nexample")
        assert f"\n  seqplan {command}".rstrip() in examples, command
        commands = examples.partition("\n")[2].replace("\\\n", " ").splitlines()
        typed = [part.split(" > ")[0] for line in commands for part in line.split("&&")]
        for words in [words for words in map(str.split, typed) if words[:1] == ["seqplan"]]:
            assert parser.parse_args(words[1:])


def test_the_planner_commands_leave_torch_alone(made_script: Path) -> None:
    assert json.loads(run_python(made_script, quiet=False).splitlines()[-1]) == []


@pytest.fixture
def made_script(tmp_path: Path, dense: PlannedFiles, lockstep: PlannedFiles) -> Path:
    """Runs every planner command in one process and prints which heavy modules it then has."""
    path = tmp_path / "commands.py"
    commands = [["--help"], *([*name.split(), "--help"] for name in COMMANDS)]
    commands.append(["profile", "list"])
    for plan_files in (dense, lockstep):
        commands += [
            ["lengths", str(plan_files.lengths)],
            [*map(str, plan_files.plan_arguments[:-1]), "2"],
            ["check", "plans", str(plan_files.plans), "--profile", plan_files.profile],
            ["explain", str(plan_files.plans), "--step", "0"],
            ["explain", str(plan_files.plans), "--step", "0", "--rank", "0"],
            [
                *("propose", "--profile", plan_files.profile, "--gpus", "2"),
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


# Environment


def test_required_options_may_come_from_the_environment(
    lengths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "proposal.json"
    arguments = ("--gpus", 4, lengths, "--max-len", 512, "--tokens", 4000, "-o", output)
    monkeypatch.setenv("SEQPLAN_PROFILE", "gpt-7b-a100-40gb")
    succeeded(call("propose", *arguments))
    assert json.loads(output.read_text())["profile"]["name"] == "gpt-7b-a100-40gb"
    # An option goes first.
    succeeded(call("propose", "--profile", "llama-7b-a800-80gb", *arguments))
    assert json.loads(output.read_text())["profile"]["name"] == "llama-7b-a800-80gb"


def test_other_variables_have_no_effect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lockstep: PlannedFiles
) -> None:
    monkeypatch.setenv("SEQPLAN_STORE", str(tmp_path / "s.db"))
    for name in ("SEQPLAN_SERVICE_PORT", "SEQPLAN_SERVICE_HOST", "SEQPLAN_PORT_8400_TCP_PORT"):
        monkeypatch.setenv(name, "8400")
    for name in ("PORT", "LENGTHS", "GPUS", "JSON", "STEPS", "BATCHES"):
        monkeypatch.setenv(f"SEQPLAN_{name}", "tcp://10.0.0.1:8400")
    assert call("serve", "--add-token", "t").code == 0
    succeeded(call("plan", "--proposal", lockstep.proposal, lockstep.lengths, "--steps", 1))


# Output


def test_a_reader_that_leaves_is_no_error(dense: PlannedFiles, tmp_path: Path) -> None:
    batches = tmp_path / "batches.jsonl"
    batches.write_text("".join(f'{{"lengths":{[7] * 5000}}}\n' for _ in range(40)))
    with CommandProcess(
        *("plan", "--proposal", dense.proposal, batches),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as planning:
        first = planning.stdout.readline()
        planning.stdout.close()
        stderr = planning.stderr.read()
    assert json.loads(first)["step"] == 0
    assert planning.returncode == 1
    assert "Traceback" not in stderr
    assert "Error" not in stderr


def test_an_encoding_without_our_signs_is_no_error() -> None:
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    text = succeeded(
        fresh_process("profile", "show", "llama-32b-a800-80gb", environment=environment)
    )
    assert "43,614" in text
    text = fresh_process("profile", "list", "--json", environment=environment).out
    assert len(json.loads(text)) == len(json.loads(succeeded(call("profile", "list", "--json"))))


def test_lengths_of_any_source_serve(lockstep: PlannedFiles, tmp_path: Path) -> None:
    source = tmp_path / "lengths.jsonl"
    values = np.load(lockstep.lengths).tolist()
    source.write_text("".join(f'{{"length": {value}}}\n' for value in values))
    text = succeeded(call("plan", "--proposal", lockstep.proposal, source, "--steps", 4))
    assert text == lockstep.plans.read_text()
