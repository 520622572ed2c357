"""The profile of measured samples: fit them, write the profile and print its errors."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from seqplan.api.cli.framework.options import add_option
from seqplan.api.cli.framework.output import ERRORS, describe_errors, table, write_profile
from seqplan.costs.fit import measured_profile
from seqplan.costs.fit.samples import MeasuredOn, Sample
from seqplan.costs.fit.sync_samples import SyncSample
from seqplan.costs.profile_document import combine_modes
from seqplan.plans.format.atomic_file import write_text
from seqplan.plans.percent import percent
from seqplan.plans.recomputation import split_mode
from seqplan.plans.scheme import Scheme

GPUS_PER_NODE = 8
"""Default of ``--gpus-per-node``."""


def add_fitted_output(parser: argparse.ArgumentParser) -> None:
    """Add the options of a fitted profile: name, node and output."""
    add = partial(add_option, parser)
    add("--host-memory-gib GIB", help="host memory of a rank for modes that offload")
    add("--gpus-per-node N", default=GPUS_PER_NODE, help=f"default {GPUS_PER_NODE}")
    add("--name NAME", help="of the profile; default by model and device")
    add("--plot FILE", help="curves, samples and residuals as an HTML page")
    add("-o --output FILE", required=True)
    add("--json", help="print the profile")


def read_host_memory(args: argparse.Namespace, modes: Iterable[str]) -> float:
    """Return the bytes of ``--host-memory-gib``; ``ValueError`` if a mode needs it."""
    for mode in modes:
        share = split_mode(mode)[1]
        if share and args.host_memory_gib is None:
            raise ValueError(
                f"recomputation {mode}: offloads {percent(share, 0)} of the layers, and no host "
                "memory is stated. Add --host-memory-gib"
            )
    return float((args.host_memory_gib or 0.0) * 2**30)


@dataclass(frozen=True)
class MeasuredMode:
    """Measurements of one recomputation mode."""

    measured_on: MeasuredOn
    samples: Sequence[Sample]
    syncs: Sequence[SyncSample] = ()


def write_measured(
    args: argparse.Namespace,
    measured: Sequence[MeasuredMode],
    devices: measured_profile.ProfiledDevices,
    *,
    model: str,
    ranks: int = 1,
) -> None:
    """Fit the samples of each mode, write the profile and print its errors.

    ``model``: the part of the default name.
    """
    documents, fits = [], []
    for mode in measured:
        for problem in measured_profile.find_unfitted(mode.samples).values():
            print(f"{problem}: left out", file=sys.stderr)
        fits.append(measured_profile.fit_all(mode.measured_on, mode.samples))
        device = mode.measured_on.device
        default_name = f"{model}-{device.split(',')[0]}".lower().replace(" ", "-")
        documents.append(
            measured_profile.profile_document(
                fits[-1],
                replace(devices, gpu=device),
                name=args.name or default_name,
                source=_source(mode.measured_on, ranks),
                syncs=mode.syncs,
            )
        )
    document, left_out = combine_modes(documents)
    for name in left_out:
        print(
            f"recomputation {name}: left out, keeps no fewer bytes than one that recomputes less",
            file=sys.stderr,
        )
    for note in document.get("notes", ()):
        print(note, file=sys.stderr)
    write_profile(args.output, document)
    if args.plot is not None:
        from seqplan.api.report.fit_page import render_fits

        name, source = document["name"], document["source"]
        layers = fits[0].measured_on.sizes()["layers"]
        page = render_fits(name, source, layers, measured[0].samples, fits[0].latencies)
        write_text(args.plot, page)
    if args.json:
        print(json.dumps(document, ensure_ascii=False))
        return
    for mode, fit in zip(measured, fits, strict=True):
        if len(fits) > 1:
            print(f"recomputation {mode.measured_on.recompute}:")
        print("\n".join(fit_lines(fit)))
    print("\n".join([*_sync_lines(document.get("sync", ())), ""]), end="")
    print(f"\n{args.output}: profile {document['name']}")


def _source(measured_on: MeasuredOn, ranks: int) -> str:
    """Describe the profile's origin: the devices, the date and the command."""
    today = datetime.now(UTC).date().isoformat()
    command = shlex.join(["seqplan", *sys.argv[1:]])
    where = measured_on.device if ranks == 1 else f"{measured_on.device}, {ranks} ranks"
    return f"measured on {where}, {measured_on.dtype}, {today}: {command}"


def fit_lines(fit: measured_profile.MeasuredFit) -> list[str]:
    """Tabulate the fits of all schemes, with the reasons of suspect ones and notes."""
    latencies, memory = fit.latencies, fit.memory
    header = ("scheme", "a ms/token²", "b ms/token", "c ms", "UtilLen", "in-sample", "held out")
    rows = [
        (
            str(scheme),
            f"{scheme_fit.latency.a:.3g}",
            f"{scheme_fit.latency.b:.3g}",
            f"{scheme_fit.latency.c:.3g}",
            str(scheme_fit.latency.util_len()),
            describe_errors(scheme_fit.in_sample),
            describe_errors(scheme_fit.held_out),
            describe_errors(scheme_fit.packed),
            scheme_fit.verdict,
        )
        for scheme, scheme_fit in latencies.items()
    ]
    lines = table((*header, "packed", "verdict"), rows)
    lines.append(ERRORS)
    lines += [
        f"{scheme}: {remark}"
        for scheme, scheme_fit in latencies.items()
        for remark in (*scheme_fit.reasons, *scheme_fit.notes)
    ]
    counted = "peak of the allocator" if memory.of_allocator else "kept by autograd"
    for tp, per_token in memory.bytes_per_token.items():
        lines.append(f"memory: {per_token:,.0f} bytes a token at tp {tp}, {counted}")
    for tp, per_token in memory.host_bytes_per_token.items():
        lines.append(f"host memory: {per_token:,.0f} bytes a token at tp {tp}")
    lines.append(f"memory error: {describe_errors(memory.errors)}")
    return lines


def _sync_lines(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return lines of the model's sync times, by layout and number of ranks."""
    return [
        f"sync: {Scheme(entry['tp'], entry['pp'])} on {entry['gpus']} ranks "
        f"{entry['ms']:,.1f} ms, optimizer {entry['optimizer_ms']:,.1f} ms"
        for entry in entries
    ]
