"""Records that nobody measured, for tests of what is made of records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flopping.cost.records import Memory, Record, Setting
from flopping.machine import Machine

MACHINE = Machine(
    processor="Testor 9000",
    cores=2,
    memory_gib=24.0,
    gpu=None,
    system="Linux 6.1",
    python="3.11.7",
    versions={"flopping": "0.1.0", "torch": "2.15.0", "timm": "1.0.30", "cuda": "none"},
    flags={"instructions": "AVX2"},
    load=0.25,
)
RECORD = Record(
    format="flopping-bench-1",
    model="deit3_base_patch16_224",
    paper="ViT-B",
    baseline=None,
    setting=Setting("compiled", "inference", "cpu", "float32", batch=8, threads=2),
    input_size=(3, 224, 224),
    params=86_600_000,
    flops=18e9,
    macs=17e9,
    seconds=(0.40, 0.50, 0.42, 0.30, 0.38),
    run="run-1",
    warmup=3,
    compile_seconds=12.5,
    memory=Memory(peak=800_000_000, resident=1_200_000_000),
    noise=0.012,
    problem=None,
    machine=MACHINE,
    command="flopping bench 'E(ViT-B)'",
    time="2026-01-01T00:00:00Z",
)
TWIN = {
    "model": "deit3_flop_base_patch16_224",
    "paper": "E(ViT-B)",
    "baseline": "deit3_base_patch16_224",
    "params": 43_300_000,
    "flops": 9e9,
    "macs": 8e9,
    "seconds": (0.25, 0.25, 0.2, 0.2, 0.25),
    "compile_seconds": 10.0,
    "memory": Memory(peak=500_000_000, resident=None),
    "noise": 0.034,
}


def in_setting(**changes: Any) -> Setting:
    """That of the record, but for what is named."""
    return replace(RECORD.setting, **changes)


def ordinary(**changes: Any) -> Record:
    """ViT-B: 20 images per second, 18 GFLOPs, 86.6 M parameters, 800 MB."""
    return replace(RECORD, **changes)


def equivariant(**changes: Any) -> Record:
    """E(ViT-B): 32 images per second, 9 GFLOPs, 43.3 M parameters, 500 MB. X over it: 1.6, 2, 2.1, 1.5, 1.52."""
    return replace(RECORD, **(TWIN | changes))


def own(name: str, baseline: str | None = None, **changes: Any) -> Record:
    """A network that isn't the paper's."""
    return replace(RECORD, **({"model": name, "paper": None, "baseline": baseline} | changes))


def many() -> list[Record]:
    """Something of everything: families, hybrids, settings, a network of one's own, and what went wrong."""
    settings = RECORD.setting, in_setting(mode="compiled-frozen"), in_setting(task="training"), in_setting(batch=1)

    def pair(run: str, model: str, flops: float, ratio: float, setting: Setting, **changes: Any) -> list[Record]:
        seconds = tuple(flops / 4e10 * (1 + 0.03 * ((7 * i) % 5)) for i in range(20))
        return [
            ordinary(model=model, paper=model, flops=flops, seconds=seconds, run=run, setting=setting),
            equivariant(
                model=f"flop-{model}",
                paper=f"E({model})",
                baseline=model,
                flops=flops / 1.95,
                seconds=tuple(s / ratio * (1 + 0.04 * ((3 * i) % 4)) for i, s in enumerate(seconds)),
                run=run,
                setting=setting,
                **changes,
            ),
        ]

    found = []
    for number, setting in enumerate(settings):
        for model, flops, ratio in (
            ("ViT-S", 4.7e9, 1.7),
            ("ViT-B", 17.7e9, 1.8),
            ("ResMLP-S24", 6.0e9, 1.85),
            ("ResMLP-B24", 23.2e9, 1.95),
            ("ConvNeXt-S (iso.)", 4.3e9, 1.6),
            ("ConvNeXt-B (iso.)", 17.0e9, 1.75),
        ):
            times = 3 if setting.task == "training" else 1
            found += pair(f"run-{number}-{model}", model, times * flops, ratio - 0.1 * number, setting)
    found.append(
        equivariant(
            model="flop-ViT-H",
            paper="E(ViT-H)",
            baseline="ViT-H",
            flops=87.2e9,
            seconds=(),
            compile_seconds=None,
            memory=None,
            noise=None,
            problem="out of memory: 9.1 GiB are needed, 4.2 GiB free",
        )
    )
    found.append(own("my_net.py:build", run="run-own"))
    found.append(own("<script>alert(1)</script>", "my_net.py:build", flops=9e9, run="run-own", noise=0.07))
    return found
