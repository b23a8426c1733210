"""An interpreter that has torch imported when it starts: forks of one process, behind a file for `sys.executable`.

Processes of their own are the subject of some tests, the seconds that each needs to import torch of none. The file is a
client of milliseconds. It hands its open files, folder, arguments and environment to the server, which forks; it passes
signals on, ends as the fork ends, by its exit code or its signal, and takes the fork along when it is killed.
"""

import fcntl
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

PASSED_ON = (signal.SIGINT, signal.SIGTERM)


class ForkedPython:
    """The server, until `close`. It forks for `-m MODULE ARGUMENTS`; what else is asked of Python, Python does."""

    def __init__(self, folder: Path) -> None:
        address = str(folder / "address")
        self.executable = folder / "python"
        self.executable.write_text(
            f"#!{sys.executable} -IS\nimport sys\nsys.path.append({os.path.dirname(__file__)!r})\n"
            f"import forked_python\nforked_python.client({address!r}, {sys.executable!r})\n"
        )
        self.executable.chmod(0o755)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(64)
            number = listener.fileno()
            self.server = subprocess.Popen(
                [sys.executable, __file__, str(number)], pass_fds=[number], stdin=subprocess.PIPE
            )

    def close(self) -> None:
        """No more forks; those that run are waited for."""
        self.server.communicate()


def client(address: str, python: str) -> NoReturn:
    if sys.argv[1] != "-m":
        os.execv(python, [python, *sys.argv[1:]])
    given = [int(name) for name in os.listdir("/proc/self/fd")]
    handles = [handle for handle in given if handle < 3 or _is_open_for_children(handle)]
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    socket.send_fds(server, [b"f"], handles)
    order = {"handles": handles, "folder": os.getcwd(), "words": sys.argv, "environment": dict(os.environ)}
    server.sendall(json.dumps(order).encode() + b"\n")
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: server.sendall(bytes([number])))
    for handle in handles:  # the fork's now: who reads waits until the last who could write has closed its own
        os.close(handle)
    code = int(server.recv(16) or -signal.SIGKILL)
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
        os.waitpid(guard, 0)


def watch(asked: socket.socket) -> NoReturn:
    """Fork, pass on what the client is told, and tell it how the fork ended."""
    _, files, _, _ = socket.recv_fds(asked, 1, 64)
    order = json.loads(asked.makefile("rb").readline())
    if not (worker := os.fork()):
        asked.close()
        become(order, files)
    for file in files:
        os.close(file)
    ended = os.pidfd_open(worker)
    while ended not in (ready := select.select([asked, ended], [], [])[0]):
        if ready:
            for number in (told := asked.recv(16)):
                os.kill(worker, number)
            if not told:  # the client was killed
                os.killpg(worker, signal.SIGKILL)
                break
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    with suppress(BrokenPipeError):
        asked.sendall(str(code).encode())
    os._exit(0)


def become(order: dict[str, Any], files: list[int]) -> NoReturn:
    """Make this process what the interpreter would be."""
    from support.launcher import end

    os.setsid()
    aside = [fcntl.fcntl(file, fcntl.F_DUPFD, 200) for file in files]  # where none of their places is
    for file in files:
        os.close(file)
    for file, place in zip(aside, order["handles"], strict=True):
        os.dup2(file, place)
        os.close(file)
    sys.executable, _, module, *words = order["words"]
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = [module, *words]
    sys.modules.pop(module if "." in module else f"{module}.__main__", None)
    end(runpy.run_module, [module, None, "__main__", True])


if __name__ == "__main__":
    serve(int(sys.argv[1]))
