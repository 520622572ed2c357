"""A profile: fitted latency and memory models of a model on a kind of GPU, with provenance."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from seqplan.plans.scheme import Scheme
from seqplan.profiler.latency import Latency
from seqplan.profiler.memory import Memory
from seqplan.profiler.model_sizes import ModelShape
from seqplan.profiler.scheme_model import SchemeModel
from seqplan.profiler.scheme_rules import scheme_problem

PROFILE_SCHEMA = 1

LARGEST = 1e18
"""Largest number of a profile: an exabyte. Products of two stay finite."""

ORIGINS = ("published", "measured", "derived")
"""Where a scheme's coefficients come from: a source, samples, or the analytic model."""

_DEGREE = re.compile(r"[1-9][0-9]{0,8}")


class ProfileError(ValueError):
    """A profile that cannot be used; the message says which field and why."""


@dataclass(frozen=True)
class ProfiledScheme:
    """A scheme's latency with its provenance; ``flag`` explains a coefficient not to be trusted.

    ``origin``: one of ``ORIGINS``; ``fit``: what a measured fit says of itself (see ``fit``).
    """

    scheme: Scheme
    latency: Latency
    flag: str | None
    origin: str = "published"
    fit: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Profile:
    """What is known of one model on one kind of GPU. Built by ``Profile.from_json``."""

    name: str
    source: str
    residuals: str
    hardware: str
    gpus_per_node: int
    shape: ModelShape
    zero_stage: int
    checkpointing: str
    forward_fraction: float
    memory: Memory
    schemes: tuple[ProfiledScheme, ...]
    digest: str
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @cached_property
    def by_scheme(self) -> dict[Scheme, ProfiledScheme]:
        """Profiled schemes by scheme."""
        return {entry.scheme: entry for entry in self.schemes}

    @property
    def rounds(self) -> bool:
        """Whether all ranks run in lockstep rounds (ZeRO-3: every layer is gathered by all)."""
        return self.zero_stage == 3

    def usable(
        self,
        gpus: int,
        context: int,
        *,
        optimizer_shards: int | None = None,
        include_flagged: bool = False,
    ) -> list[SchemeModel]:
        """Schemes that fit on ``gpus`` GPUs with room for at least one token.

        ``context``: the longest sequence (tokens) that the model is built for;
        ``optimizer_shards``: over how many ranks the states are split, by default all.
        Raises ``ProfileError`` when the memory model does not cover the context.
        """
        models = []
        for entry in self.schemes:
            if entry.scheme.gpus > gpus or (entry.flag and not include_flagged):
                continue
            model = self.model(entry, gpus, context, optimizer_shards)
            if model.capacity > 0:
                models.append(model)
        return models

    def model(
        self, entry: ProfiledScheme, gpus: int, context: int, optimizer_shards: int | None = None
    ) -> SchemeModel:
        """One scheme evaluated on ``gpus`` GPUs; its MaxLen may be 0."""
        shards = optimizer_shards or gpus
        try:
            max_len = self.memory.max_len(entry.scheme, shards, context)
        except ValueError as error:
            raise ProfileError(f"profile {self.name}: {error}") from None
        return SchemeModel(entry.scheme, entry.latency, max_len)

    @classmethod
    def from_json(cls, text: str, origin: str) -> Profile:
        """Read a profile; ``ProfileError`` says what is wrong and where (``origin``: its name)."""
        try:
            raw = json.loads(text)
        except json.JSONDecodeError as error:
            raise ProfileError(f"{origin}: not JSON ({error.msg} at line {error.lineno})") from None
        except (ValueError, RecursionError) as error:
            # An integer of thousands of digits, lists nested thousands deep.
            raise ProfileError(f"{origin}: not a profile ({error})") from None
        return cls.from_document(raw, origin)

    @classmethod
    def from_document(cls, raw: Any, origin: str) -> Profile:
        """The profile of a parsed JSON document; its digest is that of the canonical JSON."""
        canonical = json.dumps(raw, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        try:
            digest = "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
        except UnicodeEncodeError:
            raise ProfileError(f"{origin}: half of a surrogate pair is not text") from None
        return _Reader(origin).profile(raw, digest)

    @classmethod
    def load(cls, path: Path) -> Profile:
        """Read a profile file; ``ProfileError`` when it is missing or malformed."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ProfileError(f"{path}: cannot be read: {reason}") from None
        return cls.from_json(text, str(path))


class _Reader:
    """Checks each field of a profile as it is read, so that an error names its place."""

    def __init__(self, origin: str) -> None:
        self.origin = origin

    def fail(self, where: str, what: str) -> ProfileError:
        return ProfileError(f"{self.origin}: {where}: {what}")

    def fields(self, raw: Any, where: str, required: set[str], optional: set[str]) -> Any:
        if not isinstance(raw, Mapping):
            raise self.fail(where, "wants an object")
        if missing := required - set(raw):
            raise self.fail(where, f"lacks {', '.join(sorted(missing))}")
        if foreign := set(raw) - required - optional:
            raise self.fail(where, f"unknown field {', '.join(sorted(foreign))}")
        return raw

    def number(self, value: Any, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(where, f"wants a number, not {value!r}")
        if not 0 <= value <= LARGEST:  # false for NaN too
            raise self.fail(where, f"wants a number from 0 to {LARGEST:.0e}, not {value!r}")
        return float(value)

    def integer(self, value: Any, where: str, least: int = 1) -> int:
        if type(value) is not int or value < least:
            raise self.fail(where, f"wants an integer ≥ {least}, not {value!r}")
        return value

    def text(self, value: Any, where: str) -> str:
        if not isinstance(value, str) or not value:
            raise self.fail(where, f"wants a text, not {value!r}")
        return value

    def profile(self, raw: Any, digest: str) -> Profile:
        required = {"schema", "name", "source", "residuals", "hardware", "model", "zero_stage"}
        optional = {"forward_fraction", "checkpointing", "published", "notes"}
        self.fields(raw, "profile", required | {"memory", "schemes"}, optional)
        if type(raw["schema"]) is not int or raw["schema"] != PROFILE_SCHEMA:
            raise self.fail("schema", f"wants {PROFILE_SCHEMA}, not {raw['schema']!r}")
        hardware = self.fields(raw["hardware"], "hardware", {"gpu", "gpus_per_node"}, set())
        shape = self.shape(raw["model"])
        zero_stage = self.integer(raw["zero_stage"], "zero_stage", 1)
        if zero_stage > 3:
            raise self.fail("zero_stage", f"wants 1, 2 or 3, not {zero_stage}")
        fraction = self.number(raw.get("forward_fraction", 1 / 3), "forward_fraction")
        if not 0 < fraction < 1:
            raise self.fail("forward_fraction", f"wants a share between 0 and 1, not {fraction}")
        if not isinstance(raw["schemes"], list) or not raw["schemes"]:
            raise self.fail("schemes", "wants a list of at least one scheme")
        nodes = self.integer(hardware["gpus_per_node"], "hardware.gpus_per_node")
        schemes = [
            self.scheme(item, f"schemes[{i}]", shape) for i, item in enumerate(raw["schemes"])
        ]
        names = [entry.scheme for entry in schemes]
        if len(set(names)) < len(names):
            twice = next(s for s in names if names.count(s) > 1)
            raise self.fail("schemes", f"{twice} is listed twice")
        if zero_stage == 3 and any(s.tp > 1 or s.pp > 1 for s in names):
            raise self.fail("schemes", "under ZeRO-3 every scheme must have tp = pp = 1")
        memory = self.memory(raw["memory"])
        for i, scheme in enumerate(names):
            if memory.bytes_per_token(scheme) is None:
                raise self.fail(
                    "memory.activation_bytes_per_token",
                    f"lacks tp = {scheme.tp}, which schemes[{i}] ({scheme}) needs",
                )
        return Profile(
            name=self.text(raw["name"], "name"),
            source=self.text(raw["source"], "source"),
            residuals=self.text(raw["residuals"], "residuals"),
            hardware=self.text(hardware["gpu"], "hardware.gpu"),
            gpus_per_node=nodes,
            shape=shape,
            zero_stage=zero_stage,
            checkpointing=self.text(raw.get("checkpointing", "none"), "checkpointing"),
            forward_fraction=fraction,
            memory=memory,
            schemes=tuple(sorted(schemes, key=lambda entry: entry.scheme)),
            digest=digest,
            document=raw,
        )

    def shape(self, raw: Any) -> ModelShape:
        self.fields(raw, "model", {"hidden", "layers"}, {"vocab", "heads", "kv_heads", "ffn"})
        sizes = {
            name: None if raw.get(name) is None else self.integer(raw[name], f"model.{name}")
            for name in ("hidden", "layers", "vocab", "heads", "kv_heads", "ffn")
        }
        return ModelShape(**sizes)  # type: ignore[arg-type]

    def scheme(self, raw: Any, where: str, shape: ModelShape) -> ProfiledScheme:
        degrees = {"tp", "pp", "ulysses", "ring"}
        self.fields(raw, where, {"a", "b", "c"}, degrees | {"flag", "origin", "fit"})
        scheme = Scheme(
            **{name: self.integer(raw.get(name, 1), f"{where}.{name}") for name in degrees}
        )
        if problem := scheme_problem(scheme, shape):
            raise self.fail(f"{where} ({scheme})", problem)
        for name in "abc":
            self.number(raw[name], f"{where}.{name} ({scheme})")
        try:
            latency = Latency(float(raw["a"]), float(raw["b"]), float(raw["c"]))
        except ValueError as error:
            raise self.fail(f"{where} ({scheme})", str(error)) from None
        flag = None if raw.get("flag") is None else self.text(raw["flag"], f"{where}.flag")
        origin = raw.get("origin", ORIGINS[0])
        if origin not in ORIGINS:
            raise self.fail(f"{where}.origin", f"wants one of {', '.join(ORIGINS)}, not {origin!r}")
        fit = raw.get("fit")
        if fit is not None and not isinstance(fit, Mapping):
            raise self.fail(f"{where}.fit", "wants an object")
        return ProfiledScheme(scheme, latency, flag, origin, fit)

    def memory(self, raw: Any) -> Memory:
        names = {"capacity_bytes", "context_bytes", "margin_bytes", "sharded_state_bytes"}
        names |= {"resident_layer_bytes", "resident_embedding_bytes", "activation_bytes_per_token"}
        self.fields(raw, "memory", names, set())
        scalars = {
            name: self.number(raw[name], f"memory.{name}")
            for name in names - {"sharded_state_bytes", "activation_bytes_per_token"}
        }
        if not isinstance(raw["sharded_state_bytes"], list) or not raw["sharded_state_bytes"]:
            raise self.fail("memory.sharded_state_bytes", "wants a list of [context, bytes]")
        sharded: list[tuple[int | None, float]] = []
        for i, pair in enumerate(raw["sharded_state_bytes"]):
            where = f"memory.sharded_state_bytes[{i}]"
            if not isinstance(pair, list) or len(pair) != 2:
                raise self.fail(where, "wants [largest context in tokens or null, bytes]")
            limit = None if pair[0] is None else self.integer(pair[0], where)
            last = sharded[-1][0] if sharded else 0
            if last is None or (limit is not None and limit <= last):
                raise self.fail(where, f"context {pair[0]} does not follow {last}; null is last")
            sharded.append((limit, self.number(pair[1], where)))
        activation = {}
        raw_activation = raw["activation_bytes_per_token"]
        if not isinstance(raw_activation, Mapping) or not raw_activation:
            raise self.fail("memory.activation_bytes_per_token", "wants an object of tp → bytes")
        for tp, value in raw_activation.items():
            where = f"memory.activation_bytes_per_token.{tp}"
            if not _DEGREE.fullmatch(tp):
                raise self.fail(where, "the key must be a tensor-parallel degree")
            activation[int(tp)] = self.number(value, where)
            if activation[int(tp)] < 1:
                raise self.fail(where, f"wants at least 1 byte, not {value!r}")
        return Memory(
            sharded_state_bytes=tuple(sharded), activation_bytes_per_token=activation, **scalars
        )
