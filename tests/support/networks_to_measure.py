"""Small networks with habits, for measuring processes to load by FILE.py:ATTRIBUTE."""

import os
import signal
from pathlib import Path

import torch
from torch import Tensor, nn

MEBI = 2**20


class Net(nn.Module):
    """Images of 3 x 8 x 8 to four classes."""

    def __init__(self) -> None:
        super().__init__()
        self.default_cfg = {"input_size": (3, 8, 8)}
        self.head = nn.Linear(192, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


class Larger(Net):
    """Needs 100 MiB while it runs."""

    def forward(self, x: Tensor) -> Tensor:
        room = torch.ones(25 * MEBI, device=x.device)
        return super().forward(x) * room.max()


class Endless(Net):
    """Asks for 16 TiB, GiB by GiB, and writes to none of it."""

    def forward(self, x: Tensor) -> Tensor:
        room = [] if x.is_meta else [torch.empty(256 * MEBI) for _ in range(2**14)]
        return super().forward(x) + len(room)


class Illegal(Net):
    """Takes its process down, as an instruction that isn't there would."""

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_meta:
            os.kill(os.getpid(), signal.SIGILL)
        return super().forward(x)


class Refusing(Net):
    def forward(self, x: Tensor) -> Tensor:
        if not x.is_meta:
            raise ValueError("this network wants to rest")
        return super().forward(x)


class Unknown(Net):
    """Does what the counter has no rule for."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.special.bessel_j0(x))


class Telling(Net):
    """Writes a line to the file that TELL names whenever it runs."""

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_meta:
            with Path(os.environ["TELL"]).open("a") as file:
                file.write("ran\n")
        return super().forward(x)


class Looking(Net):
    """Looks at numbers, which the meta device doesn't have, while it is built and while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.linspace(0, 1, 3)[1].item()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale if float(x.sum()) else x


class Dying(Net):
    """Crashes in its fifth run in a process: after 4 runs for memory, or after 2 of preparation and 2 rounds."""

    ran = 0

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_meta:
            Dying.ran += 1
            if Dying.ran > 4:
                os.kill(os.getpid(), signal.SIGILL)
        return super().forward(x)
