"""A run: its recipe, its network and data, and how it is carried out on the machine at hand."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from flopping.training.recipe import Recipe, read
from flopping.whole import whole

RUN = "run.json"
FORMAT = "flopping-run-1"


@dataclass(frozen=True)
class Job:
    """What decides the result of a run: it is kept in the run's folder, and resumed with it."""

    recipe: Recipe
    model: str
    data: str
    root: str | None = None
    chunk: int | None = None
    """Images that go through the network together; by default what the machine can take."""
    init: str | None = None
    """Weights to start from."""
    new_head: bool = False

    def write(self, folder: Path) -> None:
        """Keep it in the run's folder."""
        content = {"format": FORMAT, **asdict(self), "recipe": self.recipe.to_yaml()}
        with whole(folder / RUN) as place:
            place.write_text(json.dumps(content, indent=1), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Job:
        path = folder / RUN
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            form = content.pop("format")
            if form != FORMAT:
                raise ValueError(f"{str(path)!r} is of format {form!r}; this version reads {FORMAT!r}")
            recipe = read(content.pop("recipe"), f"the recipe in {str(path)!r}")
            known = {f.name for f in fields(cls)}
            return cls(recipe=recipe, **{name: value for name, value in content.items() if name in known})
        except FileNotFoundError as error:
            raise ValueError(f"{str(folder)!r} is no run: it has no {RUN}") from error
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"{str(path)!r} is no description of a run ({type(error).__name__}: {error})") from error

    def continued(self, kept: Job, folder: Path) -> Job:
        """The job that was kept, if this one asks for the same; else a refusal that names what differs."""
        asked = self if self.chunk is not None else replace(self, chunk=kept.chunk)
        differ = [f"{name}={_short(theirs)} (was {_short(ours)})" for name, ours, theirs in _differences(kept, asked)]
        if differ:
            raise ValueError(
                f"the run in {str(folder)!r} was started otherwise: {'; '.join(differ)}. Resume it as it was, or start"
                " another one in another folder (--init takes weights along)"
            )
        return kept


@dataclass(frozen=True)
class Machine:
    """How a run is carried out. It decides how fast a run is, and how numbers are rounded, not what is learned."""

    device: str = "auto"
    workers: int = 2
    compile: bool = True
    shard: bool = False
    save_steps: int | None = None
    save_minutes: float = 10.0
    log_steps: int = 10
    test_epochs: int = 1
    test_batch: int = 100
    unreadable_share: float = 0.01
    """The run stops when more than this share of the training images can't be read."""


def _differences(one: Job, other: Job) -> list[tuple[str, Any, Any]]:
    found = []
    for f in fields(Job):
        a, b = getattr(one, f.name), getattr(other, f.name)
        if f.name == "recipe":
            found += [
                (g.name, getattr(a, g.name), getattr(b, g.name))
                for g in fields(Recipe)
                if g.name != "about" and getattr(a, g.name) != getattr(b, g.name)
            ]
        elif a != b:
            found.append((f.name, a, b))
    return found


def _short(value: object) -> str:
    return str(value) if len(str(value)) < 60 else f"{str(value)[:57]}..."
