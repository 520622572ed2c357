"""Files and runs that step records go to; each logger is imported when it is written to."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass

from seqplan.api.loggers.step_metrics import StepMetrics
from seqplan.plans.format.atomic_file import atomic_write

Records = Sequence[StepMetrics]

PREFIX = "seqplan/"
"""Before the name of every metric: a training run may log to the same place."""

RECORDS_FILE = "seqplan/steps.jsonl"
"""The records as an artifact of an MLflow run, whose metrics hold no text."""

_MLFLOW_AT_ONCE = 1000
"""Metrics in one request: MLflow's limit."""


@dataclass(frozen=True)
class Destination:
    """``KIND:TARGET``, such as ``tensorboard:runs/plan``; see ``parse``."""

    kind: str
    target: str

    @classmethod
    def parse(cls, text: str) -> Destination:
        """Read ``KIND:TARGET``. ``ValueError`` for an unknown kind or no target."""
        kind, _, target = text.partition(":")
        if kind not in _LOGGERS or not target:
            forms = ", ".join(f"{name}:{logger.target}" for name, logger in _LOGGERS.items())
            raise ValueError(f"must be one of {forms}: {text!r}")
        return cls(kind, target)

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}"

    def check_installed(self) -> None:
        """Raise ``ValueError`` with the fix if the logger's package is not installed."""
        package = _LOGGERS[self.kind].package
        if package is not None and importlib.util.find_spec(package) is None:
            raise ValueError(
                f"{self}: {package} is not installed. pip install 'seqplan[{self.kind}]'"
            )

    def write(self, records: Records, run: str) -> None:
        """Write all records, steps ascending; ``run``: the run's name.

        What the logger prints goes to stderr. ``ValueError`` if it rejects them.
        """
        with redirect_stdout(sys.stderr):
            _LOGGERS[self.kind].write(self.target, records, run)


def _write_jsonl(target: str, records: Records, _: str) -> None:
    with atomic_write(target) as file:
        for record in records:
            file.write(record.to_json() + "\n")


def _write_tensorboard(target: str, records: Records, _: str) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text.metadata import create_summary_metadata
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    one = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    writer = EventFileWriter(target)
    try:
        for record in records:
            values = [
                Summary.Value(tag=f"{PREFIX}{name}", simple_value=value)
                for name, value in record.scalars().items()
            ]
            text = TensorProto(
                dtype=DT_STRING, string_val=[record.strategy.encode()], tensor_shape=one
            )
            metadata = create_summary_metadata(display_name="strategy", description="")
            values.append(Summary.Value(tag=f"{PREFIX}strategy", metadata=metadata, tensor=text))
            writer.add_event(
                Event(wall_time=time.time(), step=record.step, summary=Summary(value=values))
            )
    finally:
        writer.close()


def _write_wandb(target: str, records: Records, run: str) -> None:
    import wandb

    try:
        with wandb.init(project=target, name=run, job_type="seqplan") as opened:
            for record in records:
                named = {f"{PREFIX}{name}": value for name, value in record.scalars().items()}
                opened.log({**named, f"{PREFIX}strategy": record.strategy}, step=record.step)
    except wandb.Error as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"wandb:{target}: {reason}. Run wandb login, or set WANDB_MODE=offline"
        ) from None


def _write_mlflow(target: str, records: Records, run: str) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import Metric
    from mlflow.exceptions import MlflowException

    try:
        client = MlflowClient()
        experiment = client.get_experiment_by_name(target)
        key = client.create_experiment(target) if experiment is None else experiment.experiment_id
        opened = client.create_run(key, run_name=run).info.run_id
        now = int(time.time() * 1000)
        metrics = [
            Metric(f"{PREFIX}{name}", value, now, record.step)
            for record in records
            for name, value in record.scalars().items()
        ]
        for begin in range(0, len(metrics), _MLFLOW_AT_ONCE):
            client.log_batch(opened, metrics=metrics[begin : begin + _MLFLOW_AT_ONCE])
        lines = "".join(record.to_json() + "\n" for record in records)
        client.log_text(opened, lines, RECORDS_FILE)
        client.set_terminated(opened)
    except MlflowException as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"mlflow:{target}: {reason}. Set MLFLOW_TRACKING_URI to a running server"
        ) from None


@dataclass(frozen=True)
class _Logger:
    """A kind of destination: what names one, the package it needs, how it is written."""

    target: str
    package: str | None
    write: Callable[[str, Records, str], None]


_LOGGERS = {
    "jsonl": _Logger("FILE", None, _write_jsonl),
    "tensorboard": _Logger("FOLDER", "tensorboard", _write_tensorboard),
    "wandb": _Logger("PROJECT", "wandb", _write_wandb),
    "mlflow": _Logger("EXPERIMENT", "mlflow", _write_mlflow),
}
