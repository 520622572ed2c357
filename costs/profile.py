"""A profile: fitted latency and memory models of a model on a kind of GPU, with provenance."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, combinations, compress
from typing import Any

from seqplan.costs.memory import Memory
from seqplan.costs.model_sizes import ModelShape
from seqplan.costs.profile_document import keep_modes, key_of, select_entries
from seqplan.costs.profile_reader import CONTRADICTION, ProfileReader
from seqplan.costs.profiled_scheme import (
    DEGREES,
    MeasuredSync,
    ProfiledScheme,
    ProfileError,
    SchemeKey,
)
from seqplan.costs.recomputation_mode import ModeModel, RecomputationMode
from seqplan.costs.scheme_model import SchemeModel
from seqplan.plans.format.canonical import canonical_json, digest_of
from seqplan.plans.format.fields import parse_document, read_text
from seqplan.plans.scheme import Scheme


def _grows(scheme: Scheme) -> set[str]:
    """Return the axes of ``scheme`` with a degree above 1."""
    return {axis for axis in DEGREES if getattr(scheme, axis) > 1}


def _subsets(axes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(axes, count) for count in range(len(axes) + 1))


_EXPECTED, _PUBLISHED = "expected error: ", "published: "
"""How a note and a statement of residuals begin that are about measured times."""


_NO_SCHEMES = '"schemes":[]'

LEAST_MORE = 1.02
"""Times the MaxLen of the next faster mode that a mode offers at least, or it is not planned."""


def keep_useful(scheme: Scheme, modes: Sequence[ModeModel]) -> tuple[ModeModel, ...]:
    """Return the modes that hold a micro-batch and hold clearly more than every faster one.

    By ascending MaxLen, with those of lowest cost per token among equals. A mode is as fast as
    another if all three coefficients are at most the other's.
    """
    useful: list[ModeModel] = []
    for mode in sorted(modes, key=lambda mode: mode.max_len):
        fits = scheme.usable_capacity(mode.max_len) >= scheme.unit
        last = mode is max(modes, key=lambda mode: mode.max_len)
        if fits and (last or not any(_replaces(other, mode) for other in modes)):
            useful.append(mode)
    return tuple(useful)


def _replaces(other: ModeModel, mode: ModeModel) -> bool:
    """Whether ``other`` holds about as much as ``mode`` at no more time."""
    fast, slow = other.latency, mode.latency
    return (
        other is not mode
        and (fast.a, fast.b, fast.c) != (slow.a, slow.b, slow.c)
        and fast.a <= slow.a
        and fast.b <= slow.b
        and fast.c <= slow.c
        and other.max_len * LEAST_MORE >= mode.max_len
    )


@dataclass(frozen=True)
class Profile:
    """The costs of one model on one kind of GPU. Built by ``Profile.from_json``.

    ``modes``: its recomputation modes, those that keep most first.
    """

    name: str
    source: str
    residuals: str
    hardware: str
    gpus_per_node: int
    shape: ModelShape
    zero_stage: int
    modes: tuple[RecomputationMode, ...]
    memory: Memory
    schemes: tuple[ProfiledScheme, ...]
    sync: tuple[MeasuredSync, ...]
    digest: str
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @cached_property
    def by_scheme(self) -> dict[Scheme, ProfiledScheme]:
        """Profiled schemes by scheme; ``ProfileError`` with several degrees of EP."""
        _ = self.expert_parallel
        return {entry.scheme: entry for entry in self.schemes}

    @cached_property
    def expert_degrees(self) -> tuple[int, ...]:
        """Degrees of expert parallelism of its entries, ascending."""
        return tuple(sorted({entry.expert_parallel for entry in self.schemes}))

    @property
    def expert_parallel(self) -> int:
        """The one degree of expert parallelism; ``ProfileError`` if there are several."""
        if len(self.expert_degrees) > 1:
            raise ProfileError(
                f"profile {self.name}: has expert_parallel {self._degrees}. State one, such as "
                f"expert_parallel={self.expert_degrees[1]}; a proposal chooses it"
            )
        return self.expert_degrees[0]

    @property
    def _degrees(self) -> str:
        return ", ".join(map(str, self.expert_degrees))

    def at_expert_parallel(self, degree: int) -> Profile:
        """Return the profile with the entries of one degree of EP; itself if they are all.

        ``ProfileError`` if it has none of them.
        """
        if isinstance(degree, bool) or degree not in self.expert_degrees:
            raise ProfileError(
                f"profile {self.name}: has no expert_parallel {degree}, only {self._degrees}. "
                "State one of them or derive the profile with this degree"
            )
        return self._keep({e.key for e in self.schemes if e.expert_parallel == degree})

    @property
    def mode_names(self) -> str:
        """Names of its recomputation modes, those that keep most first."""
        return ", ".join(mode.name for mode in self.modes)

    @property
    def forward_fraction(self) -> float | dict[str, float]:
        """Forward's share of a micro-batch's time; by mode if the profile has several."""
        if len(self.modes) == 1:
            return self.modes[0].forward_fraction
        return {mode.name: mode.forward_fraction for mode in self.modes}

    def keep_modes(self, names: Collection[str]) -> Profile:
        """Return the profile with some of its recomputation modes; itself if they are all.

        ``ProfileError`` if it has none of them.
        """
        kept = [mode.name for mode in self.modes if mode.name in names]
        if len(kept) == len(self.modes):
            return self
        if not kept:
            raise ProfileError(
                f"profile {self.name}: its recomputation modes are {self.mode_names}, not "
                f"{', '.join(sorted(names))}. Derive or measure the profile with one of them"
            )
        return Profile.from_document(keep_modes(self.document, kept), self.name)

    @property
    def lockstep(self) -> bool:
        """Whether all ranks run in lockstep (ZeRO-3: every layer is gathered by all)."""
        return self.zero_stage == 3

    @property
    def device_error(self) -> float | None:
        """Return the share by which predictions miss measured times; None if nobody measured it.

        The largest median on held-out or packed samples of measured schemes, or what a source
        states. How far coefficients are from the analytic model they were derived with is another
        matter.
        """
        notes = self._list_notes()
        if any("unchecked" in note and not note.startswith(_EXPECTED) for note in notes):
            return None
        return self.stated_error

    @property
    def stated_error(self) -> float | None:
        """Return ``device_error``, also if something is unchecked and it may be larger."""
        if notes := self._list_notes():
            stated = [note for note in notes if note.startswith(_EXPECTED)]
        else:
            fits = [entry.fit for entry in self.schemes if entry.fit]
            medians = [
                fit.get(kind, {}).get("median") for fit in fits for kind in ("held_out", "packed")
            ]
            if fits and len(fits) == len(self.schemes) and None not in medians:
                return float(max(medians))
            stated = [self.residuals] if self.residuals.startswith(_PUBLISHED) else []
        match = re.search(r"([0-9]+(?:\.[0-9]+)?)\s*%", stated[0]) if stated else None
        return float(match[1]) / 100 if match else None

    def _list_notes(self) -> list[str]:
        """List what a profile with derived schemes states of its error; empty for others."""
        if all(entry.origin != "derived" for entry in self.schemes):
            return []
        return [self.residuals.rpartition("; ")[2], *self.document.get("notes", ())]

    def restrict(self, *, measured: bool = False, layout: tuple[int, int] | None = None) -> Profile:
        """Return the profile with a part of its schemes.

        Itself if that is all. ``measured``: those that are not derived; ``layout``: those of one
        ⟨tp, pp⟩.
        ``ProfileError`` if none is left.
        """
        chosen = {
            entry.key
            for entry in self.schemes
            if not (measured and entry.origin == "derived")
            and layout in (None, (entry.scheme.tp, entry.scheme.pp))
        }
        if not chosen:
            wanted_schemes = "measured scheme" if measured else "scheme"
            if layout is not None:
                wanted_schemes += f" of layout {Scheme(*layout)}"
            there = sorted({(entry.scheme.tp, entry.scheme.pp) for entry in self.schemes})
            raise ProfileError(
                f"profile {self.name}: has no {wanted_schemes}; its layouts are "
                f"{', '.join(str(Scheme(*other)) for other in there)}"
            )
        return self._keep(chosen)

    def keep_schemes(self, schemes: Collection[Scheme]) -> Profile:
        """Return the profile with these of its schemes; itself if they are all."""
        return self._keep({entry.key for entry in self.schemes if entry.scheme in schemes})

    def _keep(self, keys: Collection[SchemeKey]) -> Profile:
        if len(keys) == len(self.schemes):
            return self
        document = {**self.document, "schemes": select_entries(self.document, keys)}
        return Profile.from_document(document, self.name)

    def with_digest(self, digest: str) -> Profile | None:
        """Return the profile or the restriction of it that has this digest; None without one.

        Restrictions are those to one degree of expert parallelism, of these to one recomputation
        mode, and of each those to measured schemes, to a layout, to what a trainer runs (schemes of
        some axes, or one scheme), and both together.
        """
        if self.digest == digest:
            return self
        for degree in self.expert_degrees:
            if (part := self.at_expert_parallel(degree)._find_part(digest)) is not None:
                return part
        return None

    def _find_part(self, digest: str) -> Profile | None:
        if self.digest == digest:
            return self
        entries = [key_of(raw) for raw in self.document["schemes"]]  # of all modes, in their order
        parts = [(keys, [key in keys for key in entries]) for keys in self._parts()]
        every_mode = [mode.name for mode in self.modes]
        for names in sorted(_subsets(every_mode), key=lambda names: len(names) % len(every_mode)):
            if not names:
                continue
            document = (
                dict(self.document)
                if len(names) == len(self.modes)
                else keep_modes(self.document, names)
            )
            # Entries are written once: a part's canonical JSON is put together from them.
            head, mark, tail = canonical_json({**document, "schemes": []}).partition(_NO_SCHEMES)
            written = [canonical_json(raw) for raw in document["schemes"]]
            for keys, chosen in parts:
                listed = ",".join(compress(written, chosen))
                if digest_of(f"{head}{mark[:-1]}{listed}]{tail}") == digest:
                    part = {**document, "schemes": select_entries(document, keys)}
                    return Profile.from_document(part, self.name)
        return None

    def _parts(self) -> list[frozenset[SchemeKey]]:
        """List the sets of entries that restrictions have, the largest first."""
        schemes = {entry.scheme for entry in self.schemes}
        measured = {entry.key for entry in self.schemes if entry.origin != "derived"}
        layouts = {frozenset(s for s in schemes if (s.tp, s.pp) == (t.tp, t.pp)) for t in schemes}
        axes = {frozenset(s for s in schemes if _grows(s) <= set(of)) for of in _subsets(DEGREES)}
        parts = {frozenset(schemes), *layouts, *axes, *(a & b for a in layouts for b in axes)}
        parts |= {frozenset({scheme}) for scheme in schemes}
        of_entries = {frozenset(e.key for e in self.schemes if e.scheme in part) for part in parts}
        of_entries |= {part & measured for part in of_entries}
        return sorted(of_entries - {frozenset()}, key=lambda part: (-len(part), sorted(part)))

    def entries_of(self, entries: Iterable[ProfiledScheme]) -> list[dict[str, Any]]:
        """Return the document's entries of these, in its order."""
        return select_entries(self.document, {entry.key for entry in entries})

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
        Raises ``ProfileError`` when the memory model does not cover the context, and with several
        degrees of expert parallelism.
        """
        _ = self.expert_parallel
        models = []
        for entry in self.schemes:
            if entry.least_gpus > gpus or (entry.flag and not include_flagged):
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
        scheme, memory = entry.scheme, self.memory
        buffers = entry.buffers or (0.0,) * len(self.modes)
        try:
            max_lens = [
                memory.max_len(
                    scheme,
                    shards,
                    context,
                    mode.activation,
                    mode.count_host_bytes(scheme, self.shape.layers),
                    entry.expert_parallel,
                    buffer,
                )
                for mode, buffer in zip(self.modes, buffers, strict=True)
            ]
        except ValueError as error:
            raise ProfileError(f"profile {self.name}: {error}") from None
        if not entry.modes:
            forward = self.modes[0].forward_fraction
            return SchemeModel(scheme, entry.latency, max_lens[0], forward_fraction=forward)
        modes = [
            ModeModel(
                mode.name,
                entry.modes[mode.name],
                max_len,
                mode.kept[scheme.tp] / (mode.activation[scheme.tp] + buffer),
                mode.forward_fraction,
            )
            for mode, max_len, buffer in zip(self.modes, max_lens, buffers, strict=True)
        ]
        largest = max(modes, key=lambda mode: mode.max_len)
        useful = keep_useful(scheme, modes)
        forward = max(mode.forward_fraction for mode in useful or modes)
        return SchemeModel(scheme, largest.latency, largest.max_len, useful, forward)

    @classmethod
    def from_json(cls, text: str, origin: str) -> Profile:
        """Read a profile; ``ProfileError`` names the error and its place (``origin``: its name)."""
        return cls.from_document(parse_document(text, origin, "profile", ProfileError), origin)

    @classmethod
    def from_document(
        cls, raw: Any, origin: str, *, contradiction: float = CONTRADICTION
    ) -> Profile:
        """Check a parsed JSON document; the profile's digest is that of the canonical JSON.

        ``contradiction``: by what share a mode that recomputes more may be faster.
        """
        reader = ProfileReader(origin, contradiction=contradiction)
        return cls(**reader.fields_of_profile(raw))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile file; ``ProfileError`` when it is missing or malformed."""
        return cls.from_json(read_text(path, ProfileError), str(path))
