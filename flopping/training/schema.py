"""YAML files that are checked when they are read: pydantic's dataclasses, with errors in terms of the file."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.resources import files
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent

from flopping.errors import UsageError, name_closest

T = TypeVar("T")
MAX_CHARACTERS = 100_000
MAX_DEPTH = 20
"""Limits of a file. ruamel.yaml is slow on large files and takes quadratic time on nested ones."""


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)  # YAML 1.2: 3e-3 is a number, `no` is text; a key occurs once
    yaml.default_flow_style = False
    yaml.allow_unicode = True
    yaml.width = 120
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.representer.ignore_aliases = lambda data: True
    return yaml


def parse_yaml(text: str) -> Any:
    """The value of a text in YAML 1.2.

    >>> parse_yaml("lr: 1\\nlr: 2")
    Traceback (most recent call last):
    ...
    flopping.errors.UsageError: line 2: found duplicate key "lr" with value "2" (original value: "1")
    """
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"the text is at most {MAX_CHARACTERS} characters long, got {len(text)}")
    try:
        _require_simple(text)
        return _yaml().load(text)
    except MarkedYAMLError as error:
        problem = str(error.problem).replace("'<stream end>'", "the end")
        if problem.startswith("but "):  # the second half of a sentence
            problem = f"{error.context}, {problem}"
        hint = "; indent by spaces" if repr("\t") in problem else ""
        raise UsageError(f"line {(error.problem_mark or error.context_mark).line + 1}: {problem}{hint}") from error
    except YAMLError as error:
        raise UsageError(" ".join(str(error).split())) from error
    except (ValueError, OverflowError) as error:  # of numbers and dates
        raise error if isinstance(error, UsageError) else UsageError(str(error)) from error
    except (KeyError, TypeError, AttributeError, IndexError) as error:  # of a tag that doesn't fit, as !!bool x
        raise UsageError(f"a value doesn't fit its tag ({type(error).__name__}: {error})") from error


def _require_simple(text: str) -> None:
    """Refuse aliases, which can stand for very large values, and deep nesting."""
    depth = 0
    for event in _yaml().parse(text):
        if isinstance(event, AliasEvent):
            raise UsageError(f"line {event.start_mark.line + 1}: *{event.anchor} is refused: write the value out")
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise UsageError(f"line {event.start_mark.line + 1}: nested more than {MAX_DEPTH} levels deep")


def packaged_names(package: str) -> list[str]:
    """The YAML files of a package, without their suffix."""
    return sorted(path.name.removesuffix(".yaml") for path in files(package).iterdir() if path.name.endswith(".yaml"))


def read_packaged(package: str, name: str, what: str) -> str:
    """The text of a YAML file of a package; an error names those that are called alike."""
    names = packaged_names(package)
    if name not in names:
        near = get_close_matches(name.lower(), names, n=3, cutoff=0.6)
        hint = name_closest(near) if near else f"there are {', '.join(names)}"
        raise UsageError(f"no {what} is called {name!r}; {hint}. A file of yours ends in .yaml")
    return files(package).joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def format_yaml(value: Any) -> str:
    """Tables, lists, text and numbers as text that `parse_yaml` reads.

    >>> print(format_yaml({"lr": 0.003, "name": "3e-3"}), end="")
    lr: 0.003
    name: '3e-3'
    """
    out = io.StringIO()
    _yaml().dump(value, out)
    return out.getvalue().removesuffix("...\n")


def build(cls: type[T], content: object, what: str, synonyms: Mapping[str, str] | None = None) -> T:
    """A dataclass from the table of a file; `what` names the table in errors.

    >>> from flopping.training.recipe import About
    >>> build(About, parse_yaml("{source: me, expected: {ViT-S: 8e+1}}"), "a header").expected
    {'ViT-S': 80.0}
    >>> build(About, {"sorce": "me"}, "a header")
    Traceback (most recent call last):
    ...
    flopping.errors.UsageError: a header has no field 'sorce'; did you mean 'source'?
    """
    if not isinstance(content, Mapping):
        raise UsageError(f"{what} is a table of fields, got {content!r}")
    values = {str(name): value for name, value in content.items()}
    with as_file_error(cls, what, synonyms):
        return cls(**values)


@contextmanager
def as_file_error(cls: Any, what: str, synonyms: Mapping[str, str] | None = None) -> Iterator[None]:
    """Convert pydantic's errors about a dataclass to a `UsageError` in terms of the file."""
    try:
        yield
    except ValidationError as error:
        found = sorted(error.errors(), key=lambda each: each["type"] != "unexpected_keyword_argument")
        first = found[0]
        kind, place = first["type"], first["loc"]
        if kind == "unexpected_keyword_argument" and len(place) == 1:
            name, known = str(place[0]), cls.__pydantic_fields__
            alike = {**(synonyms or {}), **{each: each for each in known}}
            near = get_close_matches(name.lower().replace("-", "_"), alike, n=1, cutoff=0.5)
            hint = f"did you mean {alike[near[0]]!r}?" if near else f"there are {', '.join(known)}"
            message = f"{what} has no field {name!r}; {hint}"
        elif kind == "unexpected_keyword_argument":
            message = f"{place[0]} has no field {place[-1]!r}"
        elif kind == "missing" and len(place) == 1:
            message = f"{what} needs {', '.join(str(each['loc'][0]) for each in found if each['type'] == 'missing')}"
        else:
            reason = str(first["ctx"]["error"]) if kind == "value_error" else f"{first['msg']}, got {first['input']!r}"
            message = f"{'.'.join(map(str, place))}: {reason}" if place else reason
        raise UsageError(message) from error


def document(cls: Any) -> list[tuple[str, str, str]]:
    """Every field: its name, its default in YAML (empty where a value must be given), and its meaning."""
    schema = TypeAdapter(cls).json_schema()
    rows = []
    for name, values in schema["properties"].items():
        (meaning,) = (each for each in cls.__pydantic_fields__[name].metadata if isinstance(each, str))
        default = "" if name in schema["required"] else format_yaml(values.get("default", {})).strip()
        choices = f" ({', '.join(values['enum'])})" if "enum" in values else ""
        rows.append((name, default, meaning + choices))
    return rows
