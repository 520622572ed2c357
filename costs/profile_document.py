"""Documents of profiles: their entries by scheme, and the modes that they list."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from seqplan.costs.profile_reader import HOST_BYTES, HOST_MEMORY
from seqplan.costs.profiled_scheme import DEGREES, SHARED, SchemeKey
from seqplan.plans.recomputation import MODES, split_mode
from seqplan.plans.scheme import Scheme

COEFFICIENTS = ("a", "b", "c", SHARED)
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


def _order_by_mode(document: Mapping[str, Any]) -> tuple[int, float]:
    mode, offload_layers = split_mode(document["recompute"])
    return MODES.index(mode), offload_layers


def combine_modes(documents: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Combine documents of one recomputation mode each, measured in one way.

    With the schemes that all of them have. A mode that keeps no fewer bytes than one that
    recomputes less is left out, and named in the list; one that offloads is compared with the same
    mode without, and no coefficient of it is below that mode's, as both may take equally long.
    Bytes that were measured count as kept.
    """
    activations = {
        document["recompute"]: document["memory"]["activation_bytes_per_token"]
        for document in documents
    }
    degrees = set.intersection(*(set(of_mode) for of_mode in activations.values()))
    kept: list[Mapping[str, Any]] = []
    for document in sorted(documents, key=_order_by_mode):
        mode, offloads = split_mode(document["recompute"])
        lighter = [other["recompute"] for other in kept]
        lighter = [of for of in lighter if (split_mode(of)[0] == mode or not offloads)]
        if not offloads:
            lighter = [of for of in lighter if not split_mode(of)[1]]
        mine = activations[document["recompute"]]
        if all(mine[tp] < activations[other][tp] for other in lighter for tp in degrees):
            kept.append(document)
    names, widths = [document["recompute"] for document in kept], sorted(degrees, key=int)
    left_out = [name for name in activations if name not in names]
    if len(kept) == 1 and HOST_BYTES not in kept[0]["memory"]:
        return dict(kept[0]), left_out
    entries = [{key_of(raw): raw for raw in document["schemes"]} for document in kept]
    schemes = []
    for place, raw in entries[0].items():
        tp = place[0].tp
        if not all(place in of_mode and tp in map(int, degrees) for of_mode in entries):
            continue
        modes: dict[str, dict[str, float]] = {}
        for name, of_mode in zip(names, entries, strict=True):
            base = modes.get(split_mode(name)[0], {})
            modes[name] = {
                key: max(of_mode[place][key], base.get(key, 0.0))
                for key in COEFFICIENTS
                if key in of_mode[place]
            }
        rest = {key: value for key, value in raw.items() if key not in COEFFICIENTS}
        schemes.append({**rest, "modes": modes})
    first = dict(kept[0])
    for field_of_one in ("recompute", "forward_fraction"):
        first.pop(field_of_one, None)
    memory = {
        key: value
        for document in kept
        for key, value in document["memory"].items()
        if key not in ("activation_bytes_per_token", HOST_BYTES)
    }
    memory["margin_bytes"] = max(document["memory"]["margin_bytes"] for document in kept)
    return {
        **first,
        "residuals": "; ".join(
            f"{name}: {document['residuals']}" for name, document in zip(names, kept, strict=True)
        ),
        "modes": [
            {
                "name": name,
                "forward_fraction": document["forward_fraction"],
                "kept_bytes_per_token": {tp: activations[name][tp] for tp in widths},
                "transient_bytes_per_token": dict.fromkeys(widths, 0.0),
                **(
                    {HOST_BYTES: {tp: document["memory"][HOST_BYTES][tp] for tp in widths}}
                    if HOST_BYTES in document["memory"]
                    else {}
                ),
            }
            for name, document in zip(names, kept, strict=True)
        ],
        "memory": memory,
        "schemes": schemes,
    }, left_out
