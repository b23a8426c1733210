"""Put the weights of a training run into the package, with a model card made from the run's own records.

The last weights are taken, as the experiments report them. They go to flopping/models/trained/NAME/, where
`timm.create_model(NAME, pretrained=True)` and commands such as `flopping predict NAME photo.jpg` find them.

    python tools/pack_weights.py RUN [--into flopping/models/trained]
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from flopping.checkpoints.weight_files import CONFIG, WEIGHTS
from flopping.errors import UsageError
from flopping.files import atomic_write
from flopping.models.zoo import TRAINED, ZOO
from flopping.training.job import Job
from flopping.training.networks import load_checkpoint
from flopping.training.recipe import About, load, names
from flopping.training.run_log import read_log

LIMIT = 4 * 10**6
"""Bytes of all weights in the package."""
CARD = "README.md"
TEXT = """# {name}

{paper}: {parameters:,} parameters, {size} x {size} pixels, {classes} classes.

| | |
|---|---|
| data | {data} |
| top-1 on test images | {top1:.2f} % |
{moved}
| predictions of test images that change when they are moved | {changed} |
| epochs | {epochs} |
| command | `{command}` |
| commit of the source that packed it | {version} |

```python
model = timm.create_model("{name}", pretrained=True)
```

The classes are {labels}.

## Limits

These are the last weights of one run, tested after its last epoch on the images that the table names and on nothing
else. The network knows these classes only: any other image gets one of them, too. The weights are under the licence of
this package; the images that they were learned from are not part of it.

## Recipe

```yaml
{recipe}```
"""


def describe_version(folder: Path) -> str:
    """The commit of the source that the folder lies in; with uncommitted changes there is none to name."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise UsageError(f"{str(folder)!r} is in no git repository, and the card names the commit of the source")
    version = found.stdout.strip()
    if version.endswith("-dirty"):
        raise UsageError(f"{str(folder)!r} has uncommitted changes, and the card names the commit: commit them first")
    return version


def result_of(run: Path) -> dict[str, Any]:
    """The last event of a run's log that has the accuracies on moved images."""
    events = [event for event in read_log(run) if event["kind"] == "epoch"]
    if not events or not events[-1].get("moved"):
        raise UsageError(f"{str(run)!r} has not finished: its log ends without a test on moved images")
    return events[-1]


def command_of(job: Job) -> str:
    """The command of the recipe, with placeholders for the user's data and run.

    What was changed in a recipe of the package is listed. Of others the card has the whole text.
    """
    words = shlex.split(job.recipe.about.command)
    recipe = words[words.index("train") + 1] if "train" in words[:-1] else "RECIPE"
    kept = load(recipe) if recipe in names() else job.recipe
    compared = [each.name for each in fields(kept) if each.name not in ("about", "model", "model_args")]
    now, before = ({name: getattr(each, name) for name in compared} for each in (job.recipe, kept))
    changes = [shlex.quote(f"{name}={json.dumps(value)}") for name, value in now.items() if value != before[name]]
    return " ".join(["flopping train", recipe, *changes, "--model", shlex.quote(job.model), "--data DATA -o RUN"])


def write_card(run: Path, folder: Path, version: str) -> str:
    """The text of a model card, from the records of a run and the network in its last checkpoint."""
    job, result = Job.read(run), result_of(run)
    model, config = load_checkpoint(folder)
    name = config["architecture"]
    entry = ZOO.get(name)
    if entry is None:
        raise UsageError(f"only networks of this package are packed, got {name!r}")
    own = (model.default_cfg["num_classes"], config["pretrained_cfg"]["input_size"])
    if job.recipe.model_args or own != (config["num_classes"], [3, entry.img_size, entry.img_size]):
        raise UsageError(
            f"{name} by its name alone has {model.default_cfg['num_classes']} classes and {entry.img_size} pixels;"
            f" the run has {config['num_classes']}, {config['pretrained_cfg']['input_size']}, {job.recipe.model_args}"
        )
    rows = [
        f"| top-1 on test images moved by {element} | {each['top1']:.2f} % |"
        for element, each in result["moved"].items()
    ]
    return TEXT.format(
        name=name,
        paper=entry.paper or entry.model.__name__,
        parameters=sum(p.numel() for p in model.parameters()),
        size=entry.img_size,
        classes=config["num_classes"],
        data=f"{Path(job.data).name}: {job.fingerprint}",
        top1=result["top1"],
        moved="\n".join(rows),
        changed=result["changed"],
        epochs=job.recipe.epochs,
        command=command_of(job),
        version=version,
        labels=", ".join(config["label_names"]),
        recipe=replace(job.recipe, about=About(source=job.recipe.about.source)).to_yaml(),
    )


def pack(run: Path, into: Path, version: str) -> Path:
    """The folder of the packed network, which is replaced as a whole."""
    last = (run / "last").resolve()
    card = write_card(run, last, version)
    name = json.loads((last / CONFIG).read_text(encoding="utf-8"))["architecture"]
    others = [path for path in into.glob(f"*/{WEIGHTS}") if path.parent.name != name]
    total = sum(path.stat().st_size for path in (*others, last / WEIGHTS))
    if total > LIMIT:
        raise UsageError(f"the weights in {str(into)!r} would have {total:,} bytes, and {LIMIT:,} are the most")
    into.mkdir(parents=True, exist_ok=True)
    with atomic_write(into / name, folder=True) as place:
        for file in (CONFIG, WEIGHTS):
            shutil.copyfile(last / file, place / file)
        (place / CARD).write_text(card, encoding="utf-8")
    return into / name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--into", type=Path, default=TRAINED)
    asked = parser.parse_args()
    try:
        print(f"Packed into {pack(asked.run, asked.into, describe_version(asked.into.parent))}")
    except (UsageError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")


if __name__ == "__main__":
    main()
