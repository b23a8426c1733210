"""A process that starts `flopping` as often as it is told: torch is imported once, and every command is a fork of it.

Orders come as lines of JSON with a function of `training_runs`; the answers are the process's number, `stopped` when it
is, and, once it has ended, its exit code.
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
from threading import Thread
from time import process_time, sleep
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
                sleep(0.05)  # a run takes note of it in a thread

    sys.addaudithook(watch)


def strike_within_a_step(part: float) -> None:
    """Kill this process when, after its second checkpoint, another such part of a step with its checkpoint has passed.

    Time is what the processor spent on this process: on a machine with much else to do, it is the same moment.
    """
    before: list[float] = []

    def watch(name: str, args: tuple[Any, ...]) -> None:
        if name == "os.rename" and "/.new-step-" in str(args[0]) and len(before) < 2:
            before.append(process_time())
            if len(before) == 2:
                Thread(target=end_at, args=(before[1] + part * (before[1] - before[0]),), daemon=True).start()

    def end_at(moment: float) -> None:
        while process_time() < moment:
            sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)

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
    for name in ["torch.utils.tensorboard", *([] if order["curves"] else ["matplotlib"])]:
        sys.modules[name] = None  # type: ignore[assignment]
    for moment in order["strikes"]:
        strike(*moment)
    if order["part"] is not None:
        strike_within_a_step(order["part"])


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
    import flopping.training.evaluate
    import flopping.training.run  # noqa: F401
    from support import training_runs

    gc.freeze()  # children need not look at, and so copy, what is here
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            order = json.loads(line)
            become(order)
            end(getattr(training_runs, order["function"]), order["arguments"])
        print(child, flush=True)
        while os.WIFSTOPPED(status := os.waitpid(child, os.WUNTRACED)[1]):
            print("stopped", flush=True)
        print(os.waitstatus_to_exitcode(status), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
