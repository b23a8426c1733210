"""Small networks with habits, for measuring processes to load by FILE.py:ATTRIBUTE."""

import os
import signal
from pathlib import Path

import torch
from torch import Tensor, nn

MEBI = 2**20


class Net(nn.Module):
    """Images of 3 x 8 x 8 to four classes. What `act` does when it runs on real images, others have as their habit."""

    def __init__(self) -> None:
        super().__init__()
        self.default_cfg = {"input_size": (3, 8, 8)}
        self.head = nn.Linear(192, 4)

    def act(self) -> object:
        """Nothing."""

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_meta:
            self.act()
        return self.head(x.flatten(1))


class Larger(Net):
    """Needs 100 MiB while it runs."""

    def act(self) -> object:
        return torch.ones(25 * MEBI).max()


class Endless(Net):
    """Asks for 4 TiB, GiB by GiB, and writes to none of it."""

    def act(self) -> object:
        return len([torch.empty(256 * MEBI) for _ in range(2**12)])


class Illegal(Net):
    """Takes its process down, as an instruction that isn't there would."""

    def act(self) -> object:
        return os.kill(os.getpid(), signal.SIGILL)


class Refusing(Net):
    def act(self) -> object:
        raise ValueError("this network wants to rest")


class Telling(Net):
    """Writes a line to the file that TELL names whenever it runs."""

    def act(self) -> object:
        with Path(os.environ["TELL"]).open("a") as file:
            return file.write("ran\n")


class Dying(Net):
    """Crashes in its fifth run in a process: after 4 runs for memory, or after 2 of preparation and 2 rounds."""

    own = 0

    def act(self) -> object:
        Dying.own += 1
        return os.kill(os.getpid(), signal.SIGILL) if Dying.own > 4 else None


class Unknown(Net):
    """Does what the counter has no rule for."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.special.bessel_j0(x))


class Looking(Net):
    """Looks at numbers, which the meta device doesn't have, while it is built and while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.linspace(0, 1, 3)[1].item()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale if float(x.sum()) else x
