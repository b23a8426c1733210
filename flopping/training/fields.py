"""Dataclasses whose fields are checked: names, types and ranges, with errors that say what would be right.

A field's annotation holds its type, what it means, and for numbers their range:

>>> @dataclass(frozen=True)
... class Walk:
...     steps: typing.Annotated[int, Range(at_least=1), "how many"]
...     wind: typing.Annotated[float | None, "from behind, in m/s"] = None
...     def __post_init__(self) -> None:
...         check(self)
>>> make(Walk, {"steps": 3, "wind": 2}, "a walk")
Walk(steps=3, wind=2.0)
>>> make(Walk, {"stepps": 3}, "a walk")
Traceback (most recent call last):
...
ValueError: a walk has no field 'stepps'; did you mean 'steps'?
>>> Walk(steps=0)
Traceback (most recent call last):
...
ValueError: steps is a whole number of at least 1, got 0
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal, TypeVar

T = TypeVar("T")


class _Misfit(Exception):  # noqa: N818
    """A value is of another type than a field."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """The numbers that a field takes.

    >>> print(Range(at_least=0, below=1)), 1 in Range(at_least=0, below=1)
    of at least 0 and below 1
    (None, False)
    """

    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf

    def __contains__(self, number: float) -> bool:
        low = number >= self.at_least and (number > self.above or self.above == -math.inf)
        return low and number <= self.at_most and (number < self.below or self.below == math.inf)

    def __str__(self) -> str:
        ends = {"at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        words = " and ".join(f"{word} {end:.12g}" for word, end in ends.items() if math.isfinite(end))
        return f"of {words}" if words.startswith("at ") else words


@dataclass(frozen=True)
class Description:
    """A field of a checked dataclass."""

    name: str
    kinds: tuple[Any, ...]
    range: Range | None
    meaning: str
    default: Any
    """MISSING where a value must be given."""

    @property
    def takes(self) -> str:
        """In words, what values it takes."""
        words = [_spelt(kind) for kind in self.kinds if kind is not types.NoneType]
        if self.range is not None:
            words = [f"{word} {self.range}" for word in words]
        return ", or ".join([*words, *(["null"] if types.NoneType in self.kinds else [])])

    def fit(self, value: object) -> Any:
        """The value in the field's own type, or an error."""
        for kind in self.kinds:
            with suppress(_Misfit):
                fitting = _as(kind, value)
                if self.range is None or all(number in self.range for number in _numbers(fitting)):
                    return fitting
        raise ValueError(f"{self.name} is {self.takes}, got {value!r}")


def described(kind: Any) -> dict[str, Description]:
    """The fields of a checked dataclass by name."""
    return _described(kind)


@lru_cache
def _described(kind: Any) -> dict[str, Description]:
    hints = typing.get_type_hints(kind, include_extras=True)
    found = {}
    for f in fields(kind):
        hint, *extras = typing.get_args(hints[f.name])
        union = typing.get_origin(hint) in (types.UnionType, typing.Union)
        default = f.default if f.default_factory is MISSING else f.default_factory()
        (meaning,) = (extra for extra in extras if isinstance(extra, str))
        limits = next((extra for extra in extras if isinstance(extra, Range)), None)
        found[f.name] = Description(f.name, typing.get_args(hint) if union else (hint,), limits, meaning, default)
    return found


def check(instance: Any) -> None:
    """Put the value of each field into its type, in place, or refuse it. For `__post_init__`."""
    for name, description in described(type(instance)).items():
        object.__setattr__(instance, name, description.fit(getattr(instance, name)))


def make(kind: type[T], content: object, what: str, synonyms: Mapping[str, str] | None = None) -> T:
    """A checked dataclass from a table of values, and those in it from tables in that table."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{what} is a table of fields, got {content!r}")
    known = described(kind)
    values = {}
    for key, value in content.items():
        description = known[known_name(key, known, what, synonyms)]
        inner = description.kinds[0]
        nested = isinstance(inner, type) and is_dataclass(inner)
        values[description.name] = make(inner, value, description.name) if nested else value
    missing = [name for name, description in known.items() if name not in values and description.default is MISSING]
    if missing:
        raise ValueError(f"{what} needs {', '.join(missing)}")
    return kind(**values)


def known_name(key: object, known: Iterable[str], what: str, synonyms: Mapping[str, str] | None = None) -> str:
    """The key, or an error with the known one that is most like it, or like a synonym of it.

    >>> known_name("learning-rate", ["lr", "epochs"], "a recipe", {"learning_rate": "lr"})
    Traceback (most recent call last):
    ...
    ValueError: a recipe has no field 'learning-rate'; did you mean 'lr'?
    """
    names = {name: name for name in known}
    if isinstance(key, str) and key in names:
        return key
    alike = {**(synonyms or {}), **names}
    near = get_close_matches(str(key).lower().replace("-", "_"), alike, n=1, cutoff=0.5)
    hint = f"did you mean {alike[near[0]]!r}?" if near else f"there are {', '.join(names)}"
    raise ValueError(f"{what} has no field {key!r}; {hint}")


def _as(kind: Any, value: Any) -> Any:
    """The value as one of the types that fields have; whole numbers serve as floats, and lists as tuples."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal and isinstance(value, str) and value in args:
        return value
    if origin is tuple and _is_list(value) and value:
        return tuple(_as(args[0], item) for item in value)
    if origin is dict and isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _as(args[1], item) for key, item in value.items()}
    if kind is Any:
        return _plain(value)
    if kind is float:
        return _number(value)
    if type(value) is kind:  # not isinstance: True is no whole number
        return value
    raise _Misfit


def _plain(value: Any) -> Any:
    """What YAML can hold, tuples as lists."""
    if _is_list(value):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping) and all(type(key) in (str, int) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    if type(value) is float:
        return _number(value)
    if type(value) in (str, int, bool, types.NoneType):
        return value
    raise _Misfit


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))


def _number(value: Any) -> float:
    """A finite one."""
    if type(value) in (int, float):
        with suppress(OverflowError):
            number = float(value)
            if math.isfinite(number):
                return number
    raise _Misfit


def _numbers(value: Any) -> Iterator[float]:
    """The numbers that a range is about."""
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, tuple):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()


def _spelt(kind: Any) -> str:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return " or ".join(filter(None, [", ".join(args[:-1]), args[-1]]))
    if origin is tuple:
        return "a list of numbers"
    if origin is dict:
        return "a table of plain values" if args[1] is Any else "a table of numbers"
    if is_dataclass(kind):
        return "a table of fields"
    return {float: "a number", int: "a whole number", bool: "true or false", str: "text"}[kind]
