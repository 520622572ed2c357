"""One request to the service and how its response is read; a method that sends it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import NoneType
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    get_args,
    get_type_hints,
    overload,
)

from pydantic import BaseModel, TypeAdapter, ValidationError

from seqplan.plans.format.codec import from_json
from seqplan.plans.plan import Plan
from seqplan.plans.service_routes import fill_route
from seqplan.plans.views.decode_view import decode_view
from seqplan.plans.views.rank_view import RankView

P = ParamSpec("P")
T = TypeVar("T")
Query = Mapping[str, str | int | float]

_JSON = "application/json"
_PLAIN = {int, float, str, bool, NoneType}


@dataclass(frozen=True)
class ServiceCall(Generic[T]):
    """A request; ``decode`` reads the body of a success, ``wait_s`` is added to the time-out."""

    method: str
    path: str
    decode: Callable[[bytes], T]
    query: Query = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = _JSON
    wait_s: float = 0.0


class SyncSender(Protocol):
    """A client whose ``send`` returns the response."""

    def send(self, call: ServiceCall[T]) -> T: ...


class AsyncSender(Protocol):
    """A client whose ``send`` is awaited."""

    async def send(self, call: ServiceCall[T]) -> T: ...


class Operation(Generic[P, T]):
    """A method of both clients that sends the call which a function makes.

    On ``Client`` it returns the response, on ``AsyncClient`` it is awaited.
    """

    def __init__(
        self,
        make: Callable[Concatenate[Any, P], ServiceCall[T]],
        body: Callable[..., BaseModel] | None = None,
        about: str | None = None,
        signature: inspect.Signature | None = None,
    ) -> None:
        self._make = make
        self.__doc__ = about or make.__doc__
        parameters = list((signature or inspect.signature(make)).parameters.values())[1:]
        if body is not None:  # its fields are the arguments
            named = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
            parameters = named + list(inspect.signature(body).parameters.values())
        self.__signature__ = inspect.Signature(parameters)

    @overload
    def __get__(self, client: SyncSender, kind: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncSender, kind: Any) -> Callable[P, Awaitable[T]]: ...
    @overload
    def __get__(self, client: None, kind: Any) -> Operation[P, T]: ...
    def __get__(self, client: Any, kind: Any) -> Any:
        if client is None:
            return self

        def send(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.send(self._make(client, *args, **kwargs))

        send.__doc__ = self.__doc__
        send.__signature__ = self.__signature__  # type: ignore[attr-defined]
        return send


def declare(
    method: str, route: str, **renamed: str
) -> Callable[[Callable[Concatenate[Any, P], T]], Operation[P, T]]:
    """Make the operation that a function without a body declares.

    Parameters that the route names are of its path, others of the query; ``renamed``: their names
    there. The response is read as the return annotation has it. ``wait`` extends the time-out.
    """

    def decorate(function: Callable[Concatenate[Any, P], T]) -> Operation[P, T]:
        signature = inspect.signature(function)
        in_path = re.findall(r"{(\w+)}", route)

        @cache
        def kind() -> Any:
            return get_type_hints(function)["return"]

        def make(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> ServiceCall[T]:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            values = dict(bound.arguments)
            del values["self"]
            names = {name: values.pop(name) for name in in_path}
            query = {renamed.get(name, name): value for name, value in values.items()}
            origin = f"step {names['step']}" if "step" in names else ""
            read = read_response(kind(), origin)
            path, wait_s = fill_route(route, **names), values.get("wait", 0.0)
            return ServiceCall(method, path, read, query, wait_s=wait_s)

        make.__doc__ = function.__doc__
        return Operation(make, signature=signature)

    return decorate


def send_model(
    method: str, kind: type[T], route: str, body: BaseModel, /, **names: str
) -> ServiceCall[T]:
    """Make a request whose body is a model."""
    text = body.model_dump_json(exclude_unset=True).encode()
    return ServiceCall(method, fill_route(route, **names), read_model(kind), body=text)


def read_response(kind: Any, origin: str) -> Callable[[bytes], Any]:
    """Return the function that reads a response of ``kind``, of which no body is None."""

    def read(body: bytes) -> Any:
        if kind is NoneType or (not body and NoneType in get_args(kind)):
            return None
        if kind is str:
            return body.decode()
        if Plan in (kind, *get_args(kind)):
            return from_json(body.decode(), strict=False, origin=origin)
        if RankView in get_args(kind):
            return decode_view(json.loads(body), strict=False, origin=origin)
        return read_model(kind)(body)

    return read


def read_model(kind: type[T]) -> Callable[[bytes], T]:
    """Return the function that reads a response of ``kind``; ``ValueError`` in one line."""

    def read(body: bytes) -> T:
        try:
            return TypeAdapter(kind).validate_json(body)
        except ValidationError as error:
            raise ValueError(describe_first(error)) from None

    return read


def make_body(kind: Callable[P, BaseModel], *args: P.args, **kwargs: P.kwargs) -> BaseModel:
    """Make a request's body; ``ValueError`` in one line for a value that it may not have."""
    try:
        return kind(*map(to_json_value, args), **to_json_value(kwargs))
    except ValidationError as error:
        raise ValueError(describe_first(error)) from None


def to_json_value(value: Any) -> Any:
    """Return numbers, arrays and tensors within ``value`` as numbers and lists of Python."""
    if isinstance(value, Mapping):
        return {key: to_json_value(entry) for key, entry in value.items()}
    if callable(as_list := getattr(value, "tolist", None)):
        return as_list()
    if isinstance(value, list | tuple) and not set(map(type, value)) <= _PLAIN:
        return [to_json_value(entry) for entry in value]
    return list(value) if isinstance(value, tuple) else value


def describe_first(error: ValidationError) -> str:
    """Return the first problem of a validation: its place and message."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]
