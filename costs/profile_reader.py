"""A profile out of parsed JSON: every field is checked as it is read."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from seqplan.costs.architecture import NAMES as ARCHITECTURE
from seqplan.costs.architecture import Architecture
from seqplan.costs.device_values import check_device
from seqplan.costs.latency import Latency
from seqplan.costs.memory_reader import (
    ACTIVATION,
    HOST_MEMORY,
    LARGEST,
    MEMORY,
    MEMORY_OPTIONAL,
    MemoryReader,
)
from seqplan.costs.model_sizes import ModelShape
from seqplan.costs.profiled_scheme import (
    BUFFER,
    ORIGINS,
    PROFILE_SCHEMA,
    SHARED,
    MeasuredSync,
    ProfiledScheme,
    ProfileError,
)
from seqplan.costs.recomputation_mode import RecomputationMode
from seqplan.costs.scheme_rules import scheme_problem
from seqplan.plans.format.canonical import canonical_json, digest_of
from seqplan.plans.format.fields import shown
from seqplan.plans.percent import percent
from seqplan.plans.recomputation import split_mode
from seqplan.plans.scheme import Scheme

COMPARED_LENGTH, CONTRADICTION = 8192, 0.1
"""Tokens at which modes are compared, and by what share one that recomputes more may be faster:
times of kernels vary, and memory that is not written saves time."""

MOST_MODES = 8
"""Recomputation modes of a profile, as the compiled fill holds."""

_PROFILE = frozenset(
    {"schema", "name", "source", "residuals", "hardware", "model", "zero_stage"}
    | {"memory", "schemes"}
)
_PROFILE_OPTIONAL = frozenset(
    {"forward_fraction", "recompute", "modes", "published", "notes", "tensor_parallel"}
    | {"kernel", "sync"}
)
_MODE = frozenset({"name", "forward_fraction", "kept_bytes_per_token", "transient_bytes_per_token"})
HOST_BYTES = "host_bytes_per_token"
_OFFLOADING = frozenset({HOST_BYTES})
_MODEL = frozenset({"hidden", "layers"})
_MODEL_OPTIONAL = frozenset({"vocab", "heads", "kv_heads", "ffn", "head_dim"})
_COEFFICIENTS = frozenset({"a", "b", "c"})
_COEFFICIENTS_OPTIONAL = frozenset({SHARED, BUFFER})
_DEGREES = frozenset({"tp", "pp", "ulysses", "ring"})
_MODES = frozenset({"modes"})
_SCHEME_OPTIONAL = _DEGREES | {"expert_parallel", "flag", "origin", "fit"}
_SYNC_COUNTS = ("tp", "pp", "gpus")
_SYNC_TIMES = ("ms", "optimizer_ms")


class ProfileReader(MemoryReader):
    """Reads profiles.

    ``contradiction``: by what share a mode that recomputes more may be faster.
    """

    def __init__(self, origin: str, *, contradiction: float = CONTRADICTION) -> None:
        super().__init__(origin)
        self.contradiction = contradiction

    def fields_of_profile(self, raw: Any) -> dict[str, Any]:
        """Read the fields of a ``Profile``; ``raw`` stays unchanged and is its ``document``."""
        self.check_document(raw, "a profile", _PROFILE)
        document, raw = deepcopy(raw), deepcopy(raw)  # reading fills in absent fields
        schema = raw.get("schema", PROFILE_SCHEMA) if isinstance(raw, dict) else PROFILE_SCHEMA
        if type(schema) is not int or schema != PROFILE_SCHEMA:
            self.fail(
                ".schema",
                f"is {shown(schema)}, this version reads {PROFILE_SCHEMA}. Make the profile again",
            )
        self.fields(raw, "", _PROFILE, _PROFILE_OPTIONAL)
        if "kernel" in raw:
            self.name(raw, "kernel", "")
        for number, note in enumerate(self.items(raw, "notes", "") if "notes" in raw else ()):
            if type(note) is not str:
                self.fail(f".notes[{number}]", f"must be a string: {shown(note)}")
        check_device(self, raw["hardware"])
        shape = self.shape(raw["model"])
        zero_stage = self.integer(raw, "zero_stage", "", 1)
        if zero_stage > 3:
            self.fail(".zero_stage", f"must be 1, 2 or 3: {zero_stage}")
        several = "modes" in raw
        modes = self.modes(raw) if several else self.single_mode(raw)
        names = [mode.name for mode in modes] if several else []
        per_node = self.integer(raw["hardware"], "gpus_per_node", ".hardware", 1)
        schemes = self.schemes(raw, shape, zero_stage, names, per_node)
        memory = self.memory(raw["memory"], modes[-1].activation, tied=shape.tied)
        for index, entry in enumerate(schemes):
            whole = memory.resident_layer_bytes > 0 == memory.resident_expert_bytes
            if entry.expert_parallel > 1 and whole:
                self.fail(
                    f".schemes[{index}] ({entry.scheme})",
                    f"has experts on {entry.expert_parallel} ranks. State "
                    "memory.resident_expert_bytes, without them in resident_layer_bytes",
                )
            for mode in modes:
                if entry.scheme.tp not in mode.kept:
                    self.fail(
                        f".modes ({mode.name})"
                        if several
                        else ".memory.activation_bytes_per_token",
                        f"lacks tp = {entry.scheme.tp}, which schemes[{index}] ({entry.scheme}) "
                        "needs",
                    )
        return {
            "name": self.name(raw, "name", ""),
            "source": self.name(raw, "source", ""),
            "residuals": self.name(raw, "residuals", ""),
            "hardware": self.name(raw["hardware"], "gpu", ".hardware"),
            "gpus_per_node": per_node,
            "shape": shape,
            "zero_stage": zero_stage,
            "modes": modes,
            "memory": memory,
            "schemes": tuple(sorted(schemes, key=lambda entry: entry.key)),
            "sync": self.sync(raw),
            "digest": self.digest(document),
            "document": document,
        }

    def digest(self, document: dict[str, Any]) -> str:
        """Compute the digest of the whole document."""
        try:
            return digest_of(canonical_json(document))
        except ValueError as error:
            self.fail("", str(error))

    def name(self, raw: dict[str, Any], name: str, place: str) -> str:
        """Return a field that is a text, not empty and without control characters."""
        text = self.text(raw, name, place)
        if not text:
            self.fail(f"{place}.{name}", "must be a text that is not empty")
        if min(text) < " ":
            self.fail(f"{place}.{name}", "must be a text without control characters")
        return str(raw[name])

    def shape(self, raw: Any) -> ModelShape:
        """Read the model's sizes; those that are absent or null are unknown."""
        self.fields(raw, ".model", _MODEL, _MODEL_OPTIONAL | {"tied", *ARCHITECTURE})
        sizes: dict[str, Any] = {
            name: self.integer(raw, name, ".model", 1)
            for name in sorted(_MODEL | _MODEL_OPTIONAL)
            if name in _MODEL or raw.get(name) is not None
        }
        if "head_dim" in sizes and "heads" not in sizes:
            self.fail(".model.head_dim", "requires heads")
        tied = raw.get("tied", False)
        if type(tied) is not bool:
            self.fail(".model.tied", f"must be true or false: {shown(tied)}")
        try:
            architecture, _ = Architecture.split({n: raw[n] for n in ARCHITECTURE if n in raw})
            architecture.check_layers(raw["layers"])
            return ModelShape(tied=tied, architecture=architecture, **sizes)
        except ValueError as error:
            self.fail(".model", str(error).removeprefix("model: "))

    def single_mode(self, raw: dict[str, Any]) -> tuple[RecomputationMode]:
        """Read the one recomputation mode of a profile without a list of them."""
        raw.setdefault("forward_fraction", 1 / 3)
        raw.setdefault("recompute", "none")
        memory = raw["memory"]
        self.fields(memory, ".memory", MEMORY | ACTIVATION, MEMORY_OPTIONAL)
        per_token = self.activations(memory, "activation_bytes_per_token", ".memory")
        mode = RecomputationMode(
            self.name(raw, "recompute", ""),
            self.share(raw, ""),
            per_token,
            dict.fromkeys(per_token, 0.0),
        )
        return (mode,)

    def modes(self, raw: dict[str, Any]) -> tuple[RecomputationMode, ...]:
        """Read the recomputation modes, each of which must keep less than the one before."""
        for name in ("forward_fraction", "recompute"):
            if name in raw:
                self.fail(f".{name}", "is stated by each of modes. Leave it out")
        self.fields(raw["memory"], ".memory", MEMORY, MEMORY_OPTIONAL | {HOST_MEMORY})
        modes: list[RecomputationMode] = []
        for index, entry in enumerate(self.items(raw, "modes", "")):
            place = f".modes[{index}]"
            self.fields(entry, place, _MODE, _OFFLOADING)
            name = self.name(entry, "name", place)
            offload_layers = self.offload_layers(entry, place)
            mode = RecomputationMode(
                name,
                self.share(entry, place),
                self.activations(entry, "kept_bytes_per_token", place, 0 if offload_layers else 1),
                self.activations(entry, "transient_bytes_per_token", place, least=0),
                self.activations(entry, HOST_BYTES, place) if offload_layers else {},
            )
            if not mode.kept.keys() == mode.transient.keys() == (mode.host or mode.kept).keys():
                self.fail(place, "bytes per token must be of the same degrees of tp")
            if offload_layers and not raw["memory"].get(HOST_MEMORY):
                self.fail(f"{place} ({name})", f"offloads layers. State memory.{HOST_MEMORY}")
            before = self.find_lighter(modes, mode)
            if before and any(
                kept >= before.kept.get(tp, kept + 1) for tp, kept in mode.kept.items()
            ):
                self.fail(
                    f"{place} ({name})",
                    f"keeps no fewer bytes than {before.name} before it. List each mode once, "
                    "those that keep most first",
                )
            modes.append(mode)
        if len(modes) > MOST_MODES:
            self.fail(".modes", f"must be at most {MOST_MODES}: {len(modes)}")
        if len(modes) < 2 and not (modes and modes[0].host):
            self.fail(".modes", "must be at least two. State one mode by recompute")
        return tuple(modes)

    def offload_layers(self, mode: dict[str, Any], place: str) -> float:
        """Return the share of the layers that a mode offloads; only such modes have host bytes."""
        try:
            share = split_mode(mode["name"])[1]
        except ValueError as error:
            self.fail(f"{place}.name", str(error))
        if (HOST_BYTES in mode) != (share > 0):
            fix = "State" if share else "Leave out"
            self.fail(
                place, f"{mode['name']} offloads {percent(share, 0)} of layers. {fix} {HOST_BYTES}"
            )
        return share

    def find_lighter(
        self, modes: Sequence[RecomputationMode], mode: RecomputationMode
    ) -> RecomputationMode | None:
        """Return the listed mode that must keep more than ``mode``; None without one.

        The last one that does not offload; of a mode that offloads, the same without.
        """
        name, share = split_mode(mode.name)
        known = [other for other in modes if (other.name == name if share else not other.host)]
        return known[-1] if known else None

    def share(self, raw: dict[str, Any], place: str) -> float:
        """Return forward's share of the time."""
        fraction = self.number(raw, "forward_fraction", place)
        if not 0 < fraction < 1:
            self.fail(f"{place}.forward_fraction", f"must be a share between 0 and 1: {fraction}")
        return fraction

    def schemes(
        self, raw: Any, shape: ModelShape, zero_stage: int, modes: Sequence[str], per_node: int
    ) -> list[ProfiledScheme]:
        """Read the schemes, which must differ and be possible for model and nodes.

        ``modes``: whose latencies each must have, none in a profile of one.
        """
        entries = self.items(raw, "schemes", "")
        if not entries:
            self.fail(".schemes", "must be at least one scheme")
        profiled = [
            self.scheme(entry, f".schemes[{index}]", shape, modes, per_node)
            for index, entry in enumerate(entries)
        ]
        keys = [entry.key for entry in profiled]
        if len(set(keys)) < len(keys):
            scheme, degree = next(key for key in keys if keys.count(key) > 1)
            of_degree = f" with expert_parallel {degree}" if degree > 1 else ""
            self.fail(".schemes", f"{scheme}{of_degree} is listed twice")
        if zero_stage == 3 and any(scheme.tp > 1 or scheme.pp > 1 for scheme, _ in keys):
            self.fail(".schemes", "under ZeRO-3 every scheme must have tp = pp = 1")
        return profiled

    def scheme(
        self, raw: Any, place: str, shape: ModelShape, modes: Sequence[str], per_node: int
    ) -> ProfiledScheme:
        """Read one scheme with its coefficients and their origin."""
        optional = _SCHEME_OPTIONAL if modes else _SCHEME_OPTIONAL | _COEFFICIENTS_OPTIONAL
        self.fields(raw, place, _MODES if modes else _COEFFICIENTS, optional)
        degrees = {
            name: self.integer(raw, name, place, 1) for name in sorted(_DEGREES & raw.keys())
        }
        scheme = Scheme(**degrees)
        here = f"{place} ({scheme})"
        experts = "expert_parallel"
        degree = self.integer(raw, experts, place, 1) if experts in raw else 1
        if problem := scheme_problem(scheme, shape, gpus_per_node=per_node, expert_parallel=degree):
            self.fail(here, problem)
        latencies = self.latencies(raw["modes"], here, modes) if modes else {}
        latency = latencies[modes[-1]] if modes else self.latency(raw, here)
        of_modes = [(f"{here}.modes.{name}", raw["modes"][name]) for name in modes]
        of_modes = of_modes or [(here, raw)]
        stated = any(BUFFER in coefficients for _, coefficients in of_modes)
        buffers = tuple(
            self.number(coefficients, BUFFER, at, LARGEST) if BUFFER in coefficients else 0.0
            for at, coefficients in of_modes
        )
        if degree == 1 and any(of.b_shared for of in (latency, *latencies.values())):
            self.fail(here, f"{SHARED} above 0 requires expert_parallel above 1")
        flag = None if raw.get("flag") is None else self.name(raw, "flag", place)
        origin = raw.get("origin", ORIGINS[0])
        if origin not in ORIGINS:
            self.fail(
                f"{place}.origin", f"must be one of {', '.join(ORIGINS)}, not {shown(origin)}"
            )
        fit = raw.get("fit")
        if fit is not None and type(fit) is not dict:
            self.fail(f"{place}.fit", f"must be an object: {shown(fit)}")
        return ProfiledScheme(
            scheme, latency, flag, origin, fit, latencies, degree, buffers if stated else ()
        )

    def latency(self, raw: dict[str, Any], place: str) -> Latency:
        """Read the coefficients of one scheme and mode."""
        stated = _COEFFICIENTS | ({SHARED} & raw.keys())
        try:
            return Latency(
                **{name: self.number(raw, name, place, LARGEST) for name in sorted(stated)}
            )
        except ValueError as error:
            if isinstance(error, ProfileError):
                raise
            self.fail(place, str(error))

    def latencies(self, raw: Any, place: str, modes: Sequence[str]) -> dict[str, Latency]:
        """Read the coefficients of each mode; none may be clearly faster than the first."""
        self.fields(raw, f"{place}.modes", frozenset(modes))
        latencies = {}
        for name in modes:
            here = f"{place}.modes.{name}"
            self.fields(raw[name], here, _COEFFICIENTS, _COEFFICIENTS_OPTIONAL)
            latencies[name] = self.latency(raw[name], here)
        times = {
            name: latency.micro_batch_ms([COMPARED_LENGTH]) for name, latency in latencies.items()
        }
        first = modes[0]
        for name, time in times.items():
            if time < times[first] * (1 - self.contradiction):
                self.fail(
                    f"{place}.modes.{name}",
                    f"{COMPARED_LENGTH:,} tokens take {time:.4g} ms, {times[first]:.4g} ms in "
                    f"{first}, which recomputes less. Measure both again",
                )
        return latencies

    def sync(self, raw: dict[str, Any]) -> tuple[MeasuredSync, ...]:
        """Read the measured syncs; most profiles have none."""
        if raw.get("sync") is None:
            return ()
        measured = []
        for index, entry in enumerate(self.items(raw, "sync", "")):
            place = f".sync[{index}]"
            self.fields(entry, place, frozenset((*_SYNC_COUNTS, *_SYNC_TIMES)))
            counts = {name: self.integer(entry, name, place, 1) for name in _SYNC_COUNTS}
            if counts["gpus"] < max(2, counts["tp"] * counts["pp"]):
                self.fail(f"{place}.gpus", f"{counts['gpus']} are too few for a sync")
            times = {name: self.number(entry, name, place, LARGEST) for name in _SYNC_TIMES}
            if not times["ms"] > 0:
                self.fail(f"{place}.ms", f"must be a time above 0: {times['ms']:g}")
            measured.append(
                MeasuredSync(**counts, ms=times["ms"], optimizer_ms=times["optimizer_ms"])
            )
        keys = [(entry.tp, entry.pp, entry.gpus) for entry in measured]
        if len(set(keys)) < len(keys):
            self.fail(".sync", "lists a layout twice for the same number of GPUs")
        return tuple(measured)
