"""``seqplan completion``: its scripts in real shells, those that this machine has."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import call, complaint, succeeded

from seqplan.api.cli import COMMANDS

COMPLETE = """
source {script}
[[ $(complete -p seqplan) =~ -F\\ ([^ ]+) ]]
COMP_WORDS=({words}) COMP_CWORD={last} COMPREPLY=()
"${{BASH_REMATCH[1]}}" seqplan {current}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    path = tmp_path_factory.mktemp("bash") / "seqplan.bash"
    path.write_text(succeeded(call("completion", "bash")))
    return path


def completed(script: Path, *words: str, folder: Path | None = None) -> set[str]:
    """Complete the last of ``seqplan words…`` in bash."""
    quoted = [shlex.quote(word) for word in ("seqplan", *words)]
    program = COMPLETE.format(
        script=script, words=" ".join(quoted), last=len(words), current=quoted[-1]
    )
    shell = subprocess.run(
        ["bash", "--norc", "-c", program], capture_output=True, text=True, check=True, cwd=folder
    )
    assert shell.stderr == ""
    return set(shell.stdout.split())


def test_bash_completes_commands(script: Path) -> None:
    top = {name.split()[0] for name in COMMANDS}
    assert top <= completed(script, "") | {"--help", "--version"}
    assert completed(script, "pro") == {"profile", "propose"}
    for group in ("profile", "check"):
        inside = {name.split()[1] for name in COMMANDS if name.startswith(f"{group} ")}
        assert inside <= completed(script, group, "")
    assert completed(script, "profile", "me") == {"measure", "merge"}


def test_bash_completes_options_and_choices(script: Path) -> None:
    assert completed(script, "profile", "derive", "--h") == {*("--help", "--hardware")}
    assert completed(script, "check", "plans", "--pro") == {"--profile", "--proposal", "--prove"}
    assert completed(script, "propose", "--method", "") == {"search", "eq4"}
    assert completed(script, "estimate", "--zero", "") == {"1", "2", "3"}
    assert completed(script, "completion", "") >= {"bash", "zsh", "fish"}


def test_bash_completes_files(script: Path, tmp_path: Path) -> None:
    (tmp_path / "plans.jsonl").touch()
    (tmp_path / "folder").mkdir()
    assert completed(script, "check", "plans", "pl", folder=tmp_path) == {"plans.jsonl"}
    assert completed(script, "plan", "--proposal", "pl", folder=tmp_path) == {"plans.jsonl"}
    assert completed(script, "serve", "--files", "", folder=tmp_path) == {"folder"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_their_scripts(shell: str, tmp_path: Path) -> None:
    text = succeeded(call("completion", shell))
    for name, command in COMMANDS.items():
        assert name.split()[-1] in text
        assert command.help.split("'")[0] in text  # shells quote an apostrophe
    if shutil.which(shell) is not None:
        path = tmp_path / "script"
        path.write_text(text)
        subprocess.run([shell, "-n", path], check=True)


def test_an_unknown_shell_is_one_line() -> None:
    message = complaint(call("completion", "fisch"))
    assert message.startswith("seqplan completion: argument SHELL: invalid choice: 'fisch'")
    assert "Did you mean fish?" in message
    assert "required: SHELL" in complaint(call("completion"))
