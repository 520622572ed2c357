"""Documents of profiles: their entries by scheme, and the modes that they list."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from seqplan.costs.memory_reader import HOST_MEMORY
from seqplan.costs.profile_reader import HOST_BYTES
from seqplan.costs.profiled_scheme import (
    BUFFER,
    DEGREES,
    SHARED,
    ProfileError,
    SchemeKey,
    label_entry,
)
from seqplan.plans.recomputation import rank_mode, split_mode
from seqplan.plans.scheme import Scheme

COEFFICIENTS = ("a", "b", "c", SHARED, BUFFER)
"""Fields of an entry that are of one recomputation mode."""


def scheme_of(raw: Mapping[str, Any]) -> Scheme:
    """Return the scheme of a document's entry."""
    return Scheme(**{name: raw[name] for name in DEGREES if name in raw})


def key_of(raw: Mapping[str, Any]) -> SchemeKey:
    """Return scheme and degree of expert parallelism of a document's entry."""
    return scheme_of(raw), raw.get("expert_parallel", 1)


def select_entries(
    document: Mapping[str, Any], keys: Collection[SchemeKey]
) -> list[dict[str, Any]]:
    """Return the entries of these schemes and degrees, in the document's order."""
    return [raw for raw in document["schemes"] if key_of(raw) in keys]


def keep_modes(document: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return a profile's document with these of its modes.

    That of one mode has no ``modes``, unless the mode offloads.
    """
    modes = [mode for mode in document["modes"] if mode["name"] in names]
    schemes = [
        {**entry, "modes": {name: entry["modes"][name] for name in names}}
        for entry in document["schemes"]
    ]
    if len(modes) > 1 or HOST_BYTES in modes[0]:
        return {**document, "modes": modes, "schemes": schemes}
    (mode,) = modes
    kept, transient = mode["kept_bytes_per_token"], mode["transient_bytes_per_token"]
    activation = {tp: kept[tp] + transient[tp] for tp in kept}
    flat = [
        {
            **{key: value for key, value in entry.items() if key != "modes"},
            **entry["modes"][mode["name"]],
        }
        for entry in schemes
    ]
    memory = {key: value for key, value in document["memory"].items() if key != HOST_MEMORY}
    return {
        **{key: value for key, value in document.items() if key != "modes"},
        "recompute": mode["name"],
        "forward_fraction": mode["forward_fraction"],
        "memory": {**memory, "activation_bytes_per_token": activation},
        "schemes": flat,
    }


def _read_mode(document: Mapping[str, Any]) -> str:
    """Return the recomputation mode of a document of one."""
    return str(document["recompute"])


def combine_modes(documents: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Combine documents of one recomputation mode each, measured in one way.

    With the schemes that all of them have; ``notes`` name others. ``ProfileError`` for none. A
    mode that keeps no fewer bytes than one that recomputes less is left out, and named in the
    list; one that offloads is compared with the same mode without, and no coefficient of it is
    below that mode's, as both may take equally long. Bytes that were measured count as kept.
    """
    degrees = set.intersection(*(set(_activations(document)) for document in documents))
    kept = _keep_lighter(documents, degrees)
    names, widths = [_read_mode(document) for document in kept], sorted(degrees, key=int)
    left_out = [_read_mode(document) for document in documents if _read_mode(document) not in names]
    if len(kept) == 1 and HOST_BYTES not in kept[0]["memory"]:
        return dict(kept[0]), left_out
    first = {
        key: value for key, value in kept[0].items() if key not in ("recompute", "forward_fraction")
    }
    entries = _combine_entries(kept, set(map(int, widths)))
    if not entries:
        raise ProfileError(
            f"no scheme was measured in all of {', '.join(names)}. Measure one in each of them"
        )
    lacking = _list_lacking(kept)
    return {
        **first,
        **({"notes": [*first.get("notes", ()), *lacking]} if lacking else {}),
        "residuals": "; ".join(
            f"{_read_mode(document)}: {document['residuals']}" for document in kept
        ),
        "modes": [_describe_mode(document, widths) for document in kept],
        "memory": _combine_memory(kept),
        "schemes": entries,
    }, left_out


def _list_lacking(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write a note for each scheme that some of the documents lack."""
    by_mode = {_read_mode(raw): set(map(key_of, raw["schemes"])) for raw in documents}
    notes = []
    for key in sorted(set.union(*by_mode.values())):
        if modes := [mode for mode, keys in by_mode.items() if key not in keys]:
            notes.append(f"left out: {label_entry(*key)}, not measured in {', '.join(modes)}")
    return notes


def _activations(document: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the bytes per token by degree of tensor parallelism."""
    by_degree: Mapping[str, float] = document["memory"]["activation_bytes_per_token"]
    return by_degree


def _keep_lighter(
    documents: Sequence[Mapping[str, Any]], degrees: Collection[str]
) -> list[Mapping[str, Any]]:
    """Return those that keep fewer bytes than all that recompute less, ascending by mode."""
    kept: list[Mapping[str, Any]] = []
    for document in sorted(documents, key=lambda document: rank_mode(_read_mode(document))):
        mode, offloads = split_mode(_read_mode(document))
        bytes_here = _activations(document)
        for other in kept:
            other_mode, other_offloads = split_mode(_read_mode(other))
            compared = mode == other_mode if offloads else not other_offloads
            bytes_there = _activations(other)
            if compared and any(bytes_here[tp] >= bytes_there[tp] for tp in degrees):
                break
        else:
            kept.append(document)
    return kept


def _describe_mode(document: Mapping[str, Any], widths: Sequence[str]) -> dict[str, Any]:
    """Write the mode of a document as one of several."""
    memory = document["memory"]
    host = memory.get(HOST_BYTES)
    return {
        "name": _read_mode(document),
        "forward_fraction": document["forward_fraction"],
        "kept_bytes_per_token": {tp: _activations(document)[tp] for tp in widths},
        "transient_bytes_per_token": dict.fromkeys(widths, 0.0),
        **({} if host is None else {HOST_BYTES: {tp: host[tp] for tp in widths}}),
    }


def _combine_memory(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the fields that are not of a mode; of several margins the largest."""
    memory = {
        key: value
        for document in documents
        for key, value in document["memory"].items()
        if key not in ("activation_bytes_per_token", HOST_BYTES)
    }
    return {
        **memory,
        "margin_bytes": max(document["memory"]["margin_bytes"] for document in documents),
    }


def _combine_entries(
    documents: Sequence[Mapping[str, Any]], widths: Collection[int]
) -> list[dict[str, Any]]:
    """Return an entry for each scheme that all documents have, with coefficients by mode."""
    by_document = [{key_of(raw): raw for raw in document["schemes"]} for document in documents]
    entries = []
    for place, raw in by_document[0].items():
        if place[0].tp not in widths or any(place not in known for known in by_document):
            continue
        modes: dict[str, dict[str, float]] = {}
        for document, known in zip(documents, by_document, strict=True):
            name = _read_mode(document)
            base = modes.get(split_mode(name)[0], {})
            modes[name] = {
                key: max(known[place][key], base.get(key, 0.0))
                for key in COEFFICIENTS
                if key in known[place]
            }
        rest = {key: value for key, value in raw.items() if key not in COEFFICIENTS}
        entries.append({**rest, "modes": modes})
    return entries
