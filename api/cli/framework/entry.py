"""``seqplan COMMAND``. Exit codes: 0 ok, 1 failure, 2 bad input, 3 infeasible, 130 interrupted."""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, NoReturn

from seqplan.api.cli.framework.commands import COMMANDS, GROUPS, select_command
from seqplan.api.cli.framework.other_names import find_command, find_moved
from seqplan.plans.version import VERSION

FAILED, BAD_INPUT, INFEASIBLE, INTERRUPTED = 1, 2, 3, 130

VARIABLES = {"--profile": "SEQPLAN_PROFILE", "--store": "SEQPLAN_STORE", "--token": "SEQPLAN_TOKEN"}
"""Option → variable: if a command requires it, and the token in any case. Other variables, such as
``SEQPLAN_PORT`` of Kubernetes, have no effect on options."""

FIXES = {
    errno.ENOENT: ". Check the path",
    errno.ENOTDIR: ". Check the path",
    errno.ENOSPC: ". Free space or name another place",
    errno.EDQUOT: ". Free space or name another place",
    errno.EACCES: ". Change its permissions, or name another file",
    errno.EROFS: ". Name another place",
}
"""What to do about an error of the system, by its number."""

_EPILOG = """\
Environment: SEQPLAN_PROFILE, SEQPLAN_STORE and SEQPLAN_TOKEN set --profile, --store and --token if
a command requires them; SEQPLAN_KERNEL=python plans without compiled code. An option goes first.

example:
  seqplan propose lengths.npy --profile llama-32b-a800-80gb --gpus 64 --max-len 32768 \\
    -o proposal.json
  seqplan plan lengths.npy --proposal proposal.json --tokens 200000 --steps 20 -o plans.jsonl
  seqplan check plans plans.jsonl && seqplan explain plans.jsonl --step 3
"""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and suggest the nearest name."""

    _parsed: Sequence[str] = ()

    def __init__(self, **options: Any) -> None:
        # A part of a name may be another command's option: --gpus of --gpus-per-node.
        super().__init__(**options, allow_abbrev=False)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> Any:
        """Parse as argparse does; an unknown option is an error of this command."""
        self._parsed = sys.argv[1:] if args is None else args
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._describe_unknown(unknown))
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        # An unknown option is often the missing one, misspelled.
        if " required" in message:
            unknown = self._find_unknown()
            if unknown is not None:
                message = self._describe_unknown([unknown])
            elif example := _first_example(self.epilog or ""):
                message = f"{message}. For example: {example}"
        self.exit(BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _describe_unknown(self, unknown: Sequence[str]) -> str:
        name, known = unknown[0].partition("=")[0], self._option_string_actions
        moved = find_moved(name, known)
        nearest = f". Did you mean {moved}?"
        if moved is None:
            nearest = _name_commands(name) or _nearest(name, known)
        without_option = {action.dest for action in self._get_positional_actions()}
        subject = name[2:].replace("-", "_")
        is_data = subject in ("data", "dataset", "lengths") and without_option & {"data", "sources"}
        if name.startswith("--") and (is_data or subject in without_option):
            nearest = f". Leave {name} out, and give its value alone"
        elif not name.startswith("-") and (option := self._find_main_option()):
            nearest = f". Did you mean {option} {name}?"
        return f"unrecognized arguments: {' '.join(unknown)}{nearest}"

    def _find_unknown(self) -> str | None:
        """Return the first argument that is an unknown long option, or of no option."""
        for word in self._parsed[:1]:  # the others may be values
            if not word.startswith("-") and self._find_main_option():
                return word
        for word in self._parsed:
            option = word.partition("=")[0]
            if word == "--":
                return None
            unknown = option.startswith("--") and option not in self._option_string_actions
            if unknown and " " not in word:
                return word
        return None

    def _find_main_option(self) -> str | None:
        """Return the option for the subject of a command that takes no arguments."""
        if self._get_positional_actions():
            return None
        known = self._option_string_actions
        return next((option for option in ("--model", "--plans") if option in known), None)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            choices = [str(choice) for choice in action.choices or ()]
            if isinstance(action, argparse._SubParsersAction):
                nearest = _nearest(str(value), choices)
                if self.prog == "seqplan":
                    moved = find_command(str(value), COMMANDS)
                    nearest = nearest if moved is None else f". Did you mean {moved}?"
                elif not nearest:
                    nearest = f". Commands: {', '.join(choices)}"
                self.error(f"unknown command: {value!r}{nearest}")
            error.message += _nearest(str(value), choices)
            raise


def _first_example(epilog: str) -> str:
    """Return the first command of a command's examples, as one line; empty without."""
    lines = epilog.replace("\\\n", " ").splitlines()
    return next((" ".join(line.split()) for line in lines if line.startswith("  seqplan ")), "")


def _nearest(name: str, names: Collection[str]) -> str:
    without_dashes = {known.lstrip("-"): known for known in names}
    near = get_close_matches(name.lstrip("-"), without_dashes, 1, cutoff=0.62)
    return f". Did you mean {without_dashes[near[0]]}?" if near else ""


def _name_commands(option: str, most: int = 3) -> str:
    """Name the commands that have an option, if they are few."""
    names = []
    for name, command in COMMANDS.items():
        parser = _Parser()
        importlib.import_module(f"seqplan.api.cli.{command.module}").add_options(parser)
        if option in parser._option_string_actions:
            names.append(f"seqplan {name}")
    return f". It is an option of {', '.join(names)}" if 0 < len(names) <= most else ""


class _Version(argparse.Action):
    """Prints the version, and whether the planner's fill is compiled here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from seqplan.planner.placement.fill import kernel_state

        print(f"seqplan {VERSION}\nfill: {kernel_state()}")
        parser.exit()


def build_parser(
    environment: Mapping[str, str], names: Collection[str] = tuple(COMMANDS)
) -> argparse.ArgumentParser:
    """Return the parser of all commands, with defaults from the ``environment``.

    ``names``: the commands whose modules are loaded. The others have no options.
    """
    parser = _Parser(
        prog="seqplan",
        description="Execution plans for training Transformers on variable-length sequences.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show the version and what fills, and exit"
    )
    commands = {"": parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)}
    for name, command in COMMANDS.items():
        group, _, word = name.rpartition(" ")
        if group not in commands:
            line = GROUPS[group]
            described = commands[""].add_parser(
                group,
                help=line,
                description=f"{line[0].upper()}{line[1:]}.",
                epilog=f"Options and examples: seqplan {group} COMMAND --help",
            )
            commands[group] = described.add_subparsers(
                metavar="COMMAND", required=True, parser_class=_Parser
            )
        if name in names:
            module = importlib.import_module(f"seqplan.api.cli.{command.module}")
            command_parser = commands[group].add_parser(
                word,
                help=command.help,
                description=module.DESCRIPTION,
                epilog=module.EXAMPLES,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            command_parser.set_defaults(run=module.run)
            module.add_options(command_parser)
            _apply_environment(command_parser, environment)
        else:
            commands[group].add_parser(word, help=command.help)
    return parser


def _apply_environment(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """Set defaults of options from ``VARIABLES``; an option on the command line goes first."""
    for action in parser._actions:
        for option in action.option_strings:
            value = environment.get(VARIABLES.get(option, ""))
            if value and (action.required or option == "--token"):
                action.default, action.required = value, False


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; every error is one line on stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # NumPy's products are small here: on busy cores its threads would wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an encoding without × or ║ is no failure
    try:
        with _termination_as_exit():
            _reject_empty(arguments)
            selected = select_command(arguments)
            names = () if selected is None else (selected,)  # help and errors need no module
            args = build_parser(os.environ, names).parse_args(arguments)
            code: int = args.run(args)
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        _print_error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left; what it read is whole lines. Keep Python from flushing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except IsADirectoryError as error:
        _print_error(f"{error.filename}: is a folder. Name a file in it")
        return BAD_INPUT
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _print_error(f"{where}{error.strerror or error}{FIXES.get(error.errno or 0, '')}")
        return BAD_INPUT
    except ValueError as error:
        _print_error(_word(error))
        return BAD_INPUT
    except RuntimeError as error:
        from seqplan.planner.errors import Infeasible

        _print_error(str(error))
        return INFEASIBLE if isinstance(error, Infeasible) else FAILED


def _reject_empty(arguments: Sequence[str]) -> None:
    """Raise ``ValueError`` for an empty argument, which as a path would be this folder."""
    for before, word in pairwise(("seqplan", *arguments)):
        if not word or (word.startswith("--") and word.endswith("=")):
            where = f"after {before}" if not word else f"of {word[:-1]}"
            raise ValueError(
                f"the argument {where} is empty. State it, or check the variable of the shell"
            )


def _word(error: ValueError) -> str:
    """Return an error's message, with options as on the command line."""
    from seqplan.planner.errors import OptionError

    if isinstance(error, OptionError):
        return error.spell(_name_option)
    return str(error)


def _name_option(name: str) -> str:
    return "overlap= of --sync" if name == "overlap" else f"--{name.replace('_', '-')}"


def _print_error(message: str) -> None:
    print(f"seqplan: {' '.join(message.split())}", file=sys.stderr)


@contextmanager
def _termination_as_exit() -> Iterator[None]:
    """Let SIGTERM end the process as an exception does: no worker and no half file is left."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
