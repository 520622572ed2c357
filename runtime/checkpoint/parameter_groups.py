"""Options of an optimizer's groups by parameter, and a scheduler's values of groups.

Which groups a rank has depends on the parameters that it owns, so on the number of ranks. A record
therefore joins the groups of all ranks, with the names of their parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from seqplan.runtime.checkpoint.stored_extra import make_storable
from seqplan.runtime.communicators import gather_objects, raise_on_all_ranks

Named = Sequence[tuple[str, Tensor]]
"""A rank's parameters, as the optimizer has them, with their names."""

_NOT_OPTIONS = frozenset(
    {"params", "param_names", "fused", "foreach", "capturable", "differentiable"}
)
"""Keys of a group that stay as the resuming job has them: parameters, and how it computes."""
_PER_GROUP = frozenset(
    {
        *("_last_lr", "base_lrs", "lr_lambdas", "max_lrs", "min_lrs"),
        *("base_momentums", "max_momentums"),
    }
)
"""Lists in states of torch's schedulers that have a value for each group."""
_PARTS = "_schedulers"
"""The list of the states of joined schedulers."""
_SAVING = "comparing the optimizers' groups"


def record_groups(
    optimizer: torch.optim.Optimizer,
    schedule: Mapping[str, Any] | None,
    named: Named,
    group: dist.ProcessGroup,
) -> dict[str, Any]:
    """Join the groups of all ranks; collective over ``group``, a CPU group.

    ``schedule``: state of the scheduler. ``groups``: distinct options and scheduler's values, with
    the names of their parameters; ``of_rank``: places of this rank's groups; ``names``: their
    parameters. ``ValueError`` on every rank for options that a checkpoint cannot restore.
    """
    names, mine, error_message = name_groups(optimizer, named), [], None
    try:
        for at, held in enumerate(optimizer.param_groups):
            options = select_options(dict(sorted(held.items())))
            values = {
                path: value[at]
                for path, _, key, value in _find_lists(schedule or {})
                if key in _PER_GROUP and len(value) == len(names)
            }
            storable = make_storable({"options": options, "values": values}, f"group {at}")
            mine.append(_map_tensors(storable, Tensor.cpu))
    except (ValueError, TypeError, RecursionError) as error:
        error_message = str(error)
    raise_on_all_ranks(error_message, group, _SAVING)
    everyone = gather_objects(list(zip(mine, names, strict=True)), group, _SAVING)
    joined: dict[str, tuple[dict[str, Any], set[str]]] = {}
    for record, of_group in (entry for of_rank in everyone for entry in of_rank):
        joined.setdefault(_identify(record), (record, set()))[1].update(of_group)
    places = {identity: place for place, identity in enumerate(joined)}
    return {
        "ranks": len(everyone),
        "groups": [{**record, "names": sorted(known)} for record, known in joined.values()],
        "of_rank": [places[_identify(record)] for record in mine],
        "names": names,
    }


def name_groups(optimizer: torch.optim.Optimizer, named: Named) -> list[list[str]]:
    """List the names of each group's parameters."""
    known = {id(parameter): name for name, parameter in named}
    return [
        [known[id(parameter)] for parameter in group["params"] if id(parameter) in known]
        for group in optimizer.param_groups
    ]


def match_groups(record: Mapping[str, Any], names: list[list[str]], ranks: int) -> list[int | None]:
    """Return the place in ``record`` of each of this rank's groups, by their parameters.

    None for a group without parameters that the record lacks. ``ValueError`` for a parameter in no
    record, and for parameters of one group that had different options.
    """
    stored: list[int | None] = list(record["of_rank"])
    if record["ranks"] == ranks and record["names"] == names:
        return stored
    places: dict[str, set[int]] = {}
    for place, known in enumerate(record["groups"]):
        for name in known["names"]:
            places.setdefault(name, set()).add(place)
    matched: list[int | None] = []
    for at, of_group in enumerate(names):
        for name in of_group:
            if name not in places:
                raise ValueError(f"{name}: is in no group of the checkpoint. {_FIX}")
            if len(places[name]) > 1:
                raise ValueError(f"{name}: had different options on several ranks. {_FIX}")
            if places[name] != places[of_group[0]]:
                raise ValueError(f"{name}: had other options than {of_group[0]}. {_FIX}")
        if of_group:
            (place,) = places[of_group[0]]
            matched.append(place)
        else:
            matched.append(stored[at] if len(stored) == len(names) else None)
    return matched


def copy_options(record: Mapping[str, Any], matched: list[int | None]) -> list[dict[str, Any]]:
    """Copy the options of this rank's groups; empty for a group that the record lacks.

    ``matched``: of ``match_groups``. Groups of equal options have one record.
    """
    groups = record["groups"]
    return [
        {} if at is None else copy.deepcopy(select_options(groups[at]["options"])) for at in matched
    ]


def select_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Select what a checkpoint restores of a group."""
    return {key: value for key, value in group.items() if key not in _NOT_OPTIONS}


_FIX = "Make the optimizer's groups as the job that saved it"


def match_schedule(
    record: Mapping[str, Any],
    stored: Mapping[str, Any],
    fresh: Mapping[str, Any],
    matched: list[int | None],
) -> Mapping[str, Any]:
    """Return a scheduler's stored state with the values of this rank's groups.

    ``fresh``: its state as it was made here; ``matched``: of ``match_groups``. ``ValueError`` for
    other lists with as many values as the rank that stored them had groups.
    """
    if matched == record["of_rank"]:
        return stored
    fresh_lists = {path: value for path, _, _, value in _find_lists(fresh)}
    state = copy.deepcopy(dict(stored))
    for path, container, key, value in list(_find_lists(state)):
        if len(value) != len(record["of_rank"]):
            continue
        if key in _PER_GROUP:
            container[key] = [
                copy.deepcopy(
                    fresh_lists[path][at]
                    if place is None
                    else record["groups"][place]["values"][path]
                )
                for at, place in enumerate(matched)
            ]
        elif _identify(value) != _identify(fresh_lists.get(path)):
            raise ValueError(
                f"scheduler: {path} may have a value for each group, and the groups are others. "
                f"Resume with {record['ranks']} ranks"
            )
    return state


def _find_lists(state: Any, path: str = "") -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield the lists in a scheduler's state: path, container, key and value."""
    for key, value in state.items() if isinstance(state, Mapping) else enumerate(state):
        if isinstance(value, Mapping) or key == _PARTS:
            yield from _find_lists(value, f"{path}{key}.")
        elif isinstance(value, (list, tuple)):
            yield f"{path}{key}", state, key, value


def _identify(value: Any) -> str:
    """Return a text that is the same for equal values, tensors included."""
    return repr(_map_tensors(value, Tensor.tolist))


def _map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Apply ``function`` to all tensors in lists, tuples and mappings."""
    if isinstance(value, Tensor):
        return function(value.detach())
    if type(value) in (list, tuple):
        return type(value)(_map_tensors(part, function) for part in value)
    if isinstance(value, Mapping):
        return {key: _map_tensors(part, function) for key, part in value.items()}
    return value
