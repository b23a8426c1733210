"""One run of a network in a setting: forward, or a step of training; eager or compiled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from errno import ENOMEM
from typing import Any

import torch
import torch._inductor.config as inductor
import torch.nn.functional as F
from torch import Tensor, nn

from flopping.bench.records import Setting


class Run:
    """Calling it runs the network once on one batch, and returns when the device is done.

    Numbers are random. Training is forward, cross-entropy, backward and a step of AdamW; with float16 the loss is
    scaled, as it must be. The network is compiled by torch's default, the optimiser isn't. Other precisions than
    float32 are autocast.

    >>> run = Run(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), torch.randn(2, 3, 2, 2), Setting("eager", "training"))
    >>> run()
    >>> run.state_bytes > 3 * 4 * 5 * 12  # weights, and the two moments of AdamW
    True
    """

    def __init__(self, model: nn.Module, x: Tensor, setting: Setting) -> None:
        device = torch.device(setting.device)
        self.setting, self.device = setting, device
        self.training = setting.task == "training"
        self.model = model.to(device).train(self.training)
        self.x = x.to(device)
        self.called = _compiled(self.model, setting)
        self.autocast = setting.dtype != "float32"
        self.frozen = setting.mode != "compiled-frozen"
        if self.training:
            self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
            self.scaler = torch.amp.GradScaler(device.type, enabled=setting.dtype == "float16")

    def __call__(self) -> None:
        if self.training:
            self._step()
        else:
            with torch.no_grad(), self._precision(), self._freezing():
                self.called(self.x)
            self.frozen = True
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @property
    def state_bytes(self) -> int:
        """What stays between runs: weights, buffers, the optimiser's state, the images."""
        tensors = [self.x, *self.model.parameters(), *self.model.buffers()]
        if self.training:
            states = self.optimiser.state.values()
            tensors += [value for state in states for value in state.values() if isinstance(value, Tensor)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def _step(self) -> None:
        with self._precision():
            out = self.called(self.x)
            loss = F.cross_entropy(out.flatten(1), torch.zeros(len(out), dtype=torch.long, device=self.device))
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad(set_to_none=True)

    def _precision(self) -> AbstractContextManager[object]:
        if not self.autocast:
            return nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.setting.dtype))

    def _freezing(self) -> AbstractContextManager[object]:
        """For the first run, which compiles. As an option of `torch.compile` it comes too late: tracing asks for it."""
        return nullcontext() if self.frozen else inductor.patch(freezing=True)


def _compiled(model: nn.Module, setting: Setting) -> Callable[[Tensor], Tensor]:
    if setting.mode == "eager":
        return model
    # without dynamic shapes, which a second network of the same class and another image size would get
    # and with an option that says whether it is frozen, or one would run the other's code
    options: dict[str, Any] = {"freezing": setting.mode == "compiled-frozen"}
    compiled: Callable[[Tensor], Tensor] = torch.compile(model, dynamic=False, options=options)
    return compiled


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or a CPU."""
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or getattr(error, "errno", None) == ENOMEM:
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _NO_MEMORY)


_NO_MEMORY = "can't allocate memory", "not enough memory", "cannot allocate memory", "out of memory"
