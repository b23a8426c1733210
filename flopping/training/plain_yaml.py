"""YAML, read strictly: a key stands once, 3e-3 is a number, `no` is a word, and values are written out."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, ClassVar

import yaml

# Plain words that aren't text, as in YAML 1.2. PyYAML follows 1.1, which takes 3e-3 for text, 010 for eight, 1:30 for
# ninety and `no` for false.
_WORDS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    yaml_implicit_resolvers: ClassVar[dict[str | None, Any]] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise ValueError(f"line {event.start_mark.line + 1}: *{event.anchor} is refused: write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        lines: dict[object, int] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                line = key_node.start_mark.line + 1
                if key in lines:
                    raise ValueError(f"line {line}: {key} stands there twice, first in line {lines[key]}")
                lines[key] = line
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Puts in quotes what either version would not take for text."""

    def ignore_aliases(self, data: object) -> bool:
        return True


for _tag, _pattern in _WORDS.items():
    for _kind in (_Loader, _Dumper):
        _kind.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), None)
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node)))
_Loader.add_constructor("tag:yaml.org,2002:float", lambda loader, node: _float(loader.construct_scalar(node)))


def _float(text: str) -> float:
    return float(re.sub(r"\.(?=[in])", "", text.lower()))  # .inf and .nan


def parse(text: str) -> Any:
    """The value that a text in YAML stands for.

    >>> parse("lr: 3e-3")
    {'lr': 0.003}
    >>> parse("lr: 1\\nlr: 2")
    Traceback (most recent call last):
    ...
    ValueError: line 2: lr stands there twice, first in line 1
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        problem = str(error.problem).replace("'<stream end>'", "the end")
        if problem.startswith("but "):  # the second half of a sentence
            problem = f"{error.context}, {problem}"
        hint = "; indent by spaces" if repr("\t") in problem else ""
        raise ValueError(f"line {(error.problem_mark or error.context_mark).line + 1}: {problem}{hint}") from error
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def dump(value: Any) -> str:
    """Tables, lists, words and numbers as text that `parse` turns back into them.

    >>> print(dump({"lr": 0.003, "name": "3e-3"}), end="")
    lr: 0.003
    name: '3e-3'
    """
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))
