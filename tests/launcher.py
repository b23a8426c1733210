"""A process that starts `flopping` as often as it is told: torch is imported once, and every command is a fork of it.

Orders come as lines of JSON with a function of `training_runs`; the answers are the process's number and, once it has
ended, its exit code.
"""

import atexit
import gc
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

PATIENCE = 300
"""A command that takes more seconds hangs, and is ended."""


def strike(event: str, part: str, count: int, number: int = signal.SIGKILL) -> None:
    """Send this process a signal the moment it is about to do something for the so-many-th time.

    `event` is an audit event of Python, as "open" or "os.rename", `part` a part of its first argument.
    """
    left, process = count, os.getpid()

    def watch(name: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        if name == event and part in str(args[0]) and os.getpid() == process:
            left -= 1
            if not left:
                os.kill(process, number)

    sys.addaudithook(watch)


def become(order: dict[str, Any]) -> None:
    """Make this process one that a shell might have started."""
    os.setsid()
    for handle, (name, flags) in enumerate(
        ((os.devnull, os.O_RDONLY), *((order[out], os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for out in ("out", "err")))
    ):
        opened = os.open(name, flags)
        os.dup2(opened, handle)
        os.close(opened)
    signal.alarm(PATIENCE)
    if order["limit"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["limit"], resource.RLIM_INFINITY))
    if not order["curves"]:
        sys.modules["matplotlib"] = None  # type: ignore[assignment]
    for moment in order["strikes"]:
        strike(*moment)


def end(function: Callable[..., object], arguments: list[Any]) -> NoReturn:
    """Call a function and end this process as Python would, but for taking its thousands of modules apart (seconds)."""
    code = 1
    try:
        function(*arguments)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    import matplotlib.pyplot  # noqa: F401 - so that no child has to import it
    import training_runs

    import flopping.training.run
    import flopping.training.trained  # noqa: F401

    with suppress(ImportError):
        import torch.utils.tensorboard  # noqa: F401
    gc.freeze()  # children need not look at, and so copy, what is here
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            order = json.loads(line)
            become(order)
            end(getattr(training_runs, order["function"]), order["arguments"])
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
