"""``seqplan COMMAND``. Exit codes: 0 ok, 1 failure, 2 bad input, 3 infeasible, 130 interrupted."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import NoReturn

from seqplan.api.cli.framework.environment import apply_environment
from seqplan.plans.version import VERSION

VERBS = (
    *("lengths", "profiles", "profile", "verify-device", "estimate", "validate-model", "propose"),
    *(
        "plan",
        "check",
        "explain",
        "compare",
        "trace",
        "train-check",
        "refit",
        "serve",
        "sidecar",
        "demo",
    ),
)
"""In the order of use; each has a module ``seqplan.api.cli.<command>``, with _ for -."""

FAILED, BAD_INPUT, INFEASIBLE, INTERRUPTED = 1, 2, 3, 130

_EPILOG = """\
Environment: SEQPLAN_PROFILE, SEQPLAN_STORE and SEQPLAN_TOKEN set --profile, --store and --token if
a command requires them; SEQPLAN_KERNEL=python plans without compiled code. An option goes first.

example:
  seqplan propose lengths.npy --profile llama-32b-a800-80gb --gpus 64 --max-len 32768 \\
    -o proposal.json
  seqplan plan lengths.npy --proposal proposal.json --tokens 200000 --steps 20 -o plans.jsonl
  seqplan check plans.jsonl && seqplan explain plans.jsonl --step 3
"""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and suggest the nearest name."""

    options: Collection[str] = ()
    """Options of the command that is parsed."""

    def error(self, message: str) -> NoReturn:
        kind, _, unknown = message.partition(": ")
        if kind == "unrecognized arguments":
            message += _nearest(unknown.split()[0].partition("=")[0], self.options)
        self.exit(BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += _nearest(str(value), [str(choice) for choice in action.choices or ()])
            raise


def _nearest(name: str, names: Collection[str]) -> str:
    near = get_close_matches(name, names, 1)
    return f". Did you mean {near[0]}?" if near else ""


class _Version(argparse.Action):
    """Prints the version, and whether the planner's fill is compiled here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from seqplan.planner.placement.kernel import kernel_state

        print(f"seqplan {VERSION}\nfill: {kernel_state()}")
        parser.exit()


def build_parser(
    environment: Mapping[str, str], names: Sequence[str] = VERBS
) -> argparse.ArgumentParser:
    """Return the parser of these commands, with defaults from ``environment.VARIABLES``."""
    parser = _Parser(
        prog="seqplan",
        description="Execution plans for training Transformers on variable-length sequences.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show the version and what fills, and exit"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for name in names:
        module = importlib.import_module(f"seqplan.api.cli.{name.replace('-', '_')}")
        command = module.add_parser(commands)
        apply_environment(command, environment)
        parser.options = command._option_string_actions
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; every error is one line on stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # A command needs only its modules; help and a misspelled command need all.
    names = arguments[:1] if arguments and arguments[0] in VERBS else VERBS
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an encoding without × or ║ is no failure
    try:
        with _termination_as_exit():
            args = build_parser(os.environ, names).parse_args(arguments)
            code: int = args.run(args)
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left; what it read is whole lines. Keep Python from flushing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _say(f"{where}{error.strerror or error}")
        return BAD_INPUT
    except ValueError as error:
        _say(_word(error))
        return BAD_INPUT
    except RuntimeError as error:
        from seqplan.planner.errors import Infeasible

        _say(str(error))
        return INFEASIBLE if isinstance(error, Infeasible) else FAILED


def _word(error: ValueError) -> str:
    """Return an error's message, with options as on the command line."""
    from seqplan.planner.errors import OptionError

    if isinstance(error, OptionError):
        return error.spell(lambda name: f"--{name.replace('_', '-')}")
    return str(error)


def _say(message: str) -> None:
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
