"""One process that has torch imported, and forks of it: for tests of processes, which need not import torch each.

A fork runs a module in place of a file that stands for `sys.executable`, or a function of `training_runs` for its
`Launcher`. Who asks sends open files and an order, and gets lines: the number of the fork, `stopped` whenever it is,
and its exit code. When the one who asks is gone, the fork is killed.
"""

import atexit
import fcntl
import gc
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any, NoReturn

PASSED_ON = (signal.SIGINT, signal.SIGTERM)
TIMEOUT_SECONDS = 300
"""A fork for a `Launcher` that takes more seconds hangs, and is ended."""


class ForkedPython:
    """The server, until `close`, or one that was `started` by another process in the same folder.

    `executable` forks for `-m MODULE ARGUMENTS` and `-c PROGRAM ARGUMENTS`; what else is asked, Python does.
    """

    def __init__(self, folder: Path, started: bool = False) -> None:
        self.folder, self.address, self.executable = folder, str(folder / "address"), folder / "python"
        self.server: subprocess.Popen[bytes] | None = None
        if started:
            return
        self.executable.write_text(
            f"#!{sys.executable} -IS\nimport sys\nsys.path.append({os.path.dirname(__file__)!r})\n"
            f"import forked_python\nforked_python.client({self.address!r}, {sys.executable!r})\n"
        )
        self.executable.chmod(0o755)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen(64)
            number = listener.fileno()
            self.server = subprocess.Popen(
                [sys.executable, __file__, str(number)], pass_fds=[number], stdin=subprocess.PIPE
            )

    def close(self) -> None:
        """No more forks; those that a failed test left behind are killed."""
        if self.server is not None:
            self.server.communicate(b"end")  # a process forked from this one may keep the pipe open


def ask(address: str, handles: list[int], order: dict[str, Any]) -> socket.socket:
    """Ask the server for a fork with these open files."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    socket.send_fds(server, [b"f"], handles)
    server.sendall(json.dumps(order).encode() + b"\n")
    return server


def client(address: str, python: str) -> NoReturn:
    """Be the interpreter: pass signals on, and end as the fork ends."""
    words = [sys.argv[0], *sys.argv[1 + (sys.argv[1] == "-u") :]]
    if words[1] not in ("-m", "-c"):
        os.execv(python, [python, *sys.argv[1:]])
    given = [int(name) for name in os.listdir("/proc/self/fd")]
    handles = [handle for handle in given if handle < 3 or _is_open_for_children(handle)]
    order = {"handles": handles, "folder": os.getcwd(), "words": words, "environment": dict(os.environ)}
    server = ask(address, handles, order)
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: server.sendall(bytes([number])))
    for handle in handles:  # the fork's now: who reads waits until the last who could write has closed its own
        os.close(handle)
    code = int(server.makefile().read().split()[-1])
    if code < 0:
        for number in PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _is_open_for_children(handle: int) -> bool:
    with suppress(OSError):  # the list of files was one itself
        return os.get_inheritable(handle)
    return False


def serve(number: int) -> None:
    import matplotlib.pyplot  # noqa: F401 - what forks would import, once

    import flopping.cost.worker
    import flopping.training.evaluate
    import flopping.training.run  # noqa: F401
    import support.training_runs  # noqa: F401

    gc.freeze()  # forks need not look at, and so copy, what is here

    listener = socket.socket(fileno=number)
    running: set[int] = set()
    while sys.stdin not in (ready := select.select([listener, sys.stdin], [], [], 1.0)[0]):
        running -= {guard for guard in running if os.waitpid(guard, os.WNOHANG)[0]}
        if ready:
            asked, _ = listener.accept()
            if not (guard := os.fork()):
                listener.close()
                watch(asked)
            running.add(guard)
            asked.close()
    for guard in running:
        os.kill(guard, signal.SIGTERM)
        os.waitpid(guard, 0)


def watch(asked: socket.socket) -> NoReturn:
    """Fork, pass on what the client is told, and tell it what becomes of the fork."""
    _, files, _, _ = socket.recv_fds(asked, 1, 64)
    order = json.loads(asked.makefile("rb").readline())
    if not (worker := os.fork()):
        asked.close()
        become(order, files)
    for file in files:
        os.close(file)
    signal.signal(signal.SIGTERM, lambda *_: kill_group(worker))
    Thread(target=pass_on, args=(asked, worker), daemon=True).start()
    with suppress(BrokenPipeError):
        asked.sendall(f"{worker}\n".encode())
        while os.WIFSTOPPED(status := os.waitpid(worker, os.WUNTRACED)[1]):
            asked.sendall(b"stopped\n")
        asked.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def pass_on(asked: socket.socket, worker: int) -> None:
    """Send the fork the signals that the client gets, and kill it when the client was killed."""
    while told := asked.recv(16):
        for number in told:
            os.kill(worker, number)
    kill_group(worker)


def kill_group(worker: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(worker, signal.SIGKILL)


def become(order: dict[str, Any], files: list[int]) -> NoReturn:
    """Make this process what was asked for."""
    os.setsid()
    aside = [fcntl.fcntl(file, fcntl.F_DUPFD, 200) for file in files]  # where none of their places is
    for file in files:
        os.close(file)
    for file, place in zip(aside, order["handles"], strict=True):
        os.dup2(file, place)
        os.close(file)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    if "function" in order:
        from support import training_runs

        prepare(order)
        end(getattr(training_runs, order["function"]), order["arguments"])
    sys.executable, kind, module, *words = order["words"]
    sys.argv = [module, *words]
    if kind == "-c":
        end(exec, [module, {"__name__": "__main__"}])
    sys.modules.pop(module if "." in module else f"{module}.__main__", None)
    end(runpy.run_module, [module, None, "__main__", True])


def prepare(order: dict[str, Any]) -> None:
    """What `Launcher.start` can ask for."""
    for handle, name in ((1, order["out"]), (2, order["err"])):
        opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, handle)
        os.close(opened)
    signal.alarm(TIMEOUT_SECONDS)
    if order["limit"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["limit"], resource.RLIM_INFINITY))
    for name in () if order["curves"] else ("matplotlib", "matplotlib.pyplot"):
        sys.modules[name] = None  # type: ignore[assignment]
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


if __name__ == "__main__":
    serve(int(sys.argv[1]))
