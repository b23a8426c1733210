"""Errors that users see, and how values are put into messages."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class UsageError(ValueError):
    """What a user asked for cannot be done: the message says what was wrong, the value, and what would be right.

    The command line shows it without a traceback and exits with 2. Any other error is a bug and keeps its traceback.
    """


class OwnCodeError(UsageError):
    """A user's own code raised the error that is its cause. The command line shows the traceback of that error."""


class RunStoppedError(Exception):
    """A run that ended before its last step. The message says why, and how to go on."""


class PeerLostError(RunStoppedError):
    """This rank cannot reach the other ranks. Every rank that raises it reports it, because rank 0 may be gone."""


class RunInterruptedError(RunStoppedError):
    """A run that received a signal, saved a checkpoint and ended."""


class StopRequested(Exception):  # noqa: N818 - a request, not a failure
    """An evaluation that was left unfinished because the run received a signal."""


class UnreadableDataError(RunStoppedError):
    """A run whose images cannot be used."""


@contextmanager
def as_usage_error(*kinds: type[Exception], context: str = "") -> Iterator[None]:
    """Raise a `UsageError` for errors of other people's code that was called with a user's values or files.

    >>> with as_usage_error(ValueError, context="--size"):
    ...     int("x")
    Traceback (most recent call last):
    ...
    flopping.errors.UsageError: --size: invalid literal for int() with base 10: 'x'
    """
    try:
        yield
    except kinds as error:
        if isinstance(error, UsageError) and not context:
            raise
        raise UsageError(f"{context}: {describe(error)}" if context else describe(error)) from error


@contextmanager
def own_code(context: str) -> Iterator[None]:
    """Raise an `OwnCodeError` for whatever a user's own code raises, with the line that raises it.

    >>> with own_code("'my_net.py:build' can't be called"):  # doctest: +ELLIPSIS
    ...     {}["width"]
    Traceback (most recent call last):
    ...
    flopping.errors.OwnCodeError: 'my_net.py:build' can't be called: KeyError: 'width' (line 2 of ...)
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = [frame for frame in frames if "site-packages" not in frame.filename or frame is frames[0]][-1]
        what = traceback.format_exception_only(error)[-1].strip()
        raise OwnCodeError(f"{context}: {what} (line {last.lineno} of {last.filename!r})") from error


def describe(error: Exception) -> str:
    """The message of an error; one of the system without its number.

    >>> describe(FileNotFoundError(2, "No such file or directory", "a.txt"))
    "'a.txt': No such file or directory"
    """
    if type(error).__str__ is OSError.__str__ and isinstance(error, OSError) and error.filename is not None:
        return f"{str(error.filename)!r}: {error.strerror}"
    return str(error)


def pluralize(number: int, noun: str) -> str:
    """A number and a noun.

    >>> pluralize(1, "image"), pluralize(0, "image"), pluralize(2, "test image")
    ('1 image', '0 images', '2 test images')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def name_closest(names: Sequence[str]) -> str:
    """The names most like one that doesn't exist, as the end of a sentence.

    >>> name_closest(["resnet18"]), name_closest(["ViT-B", "ViT-S"])
    ('the closest is resnet18', 'the closest are ViT-B, ViT-S')
    """
    return f"the closest {'is' if len(names) == 1 else 'are'} {', '.join(names)}"


def shorten(names: Sequence[str], most: int = 10) -> str:
    """The first of many names, and how many more there are.

    >>> shorten(["a", "b", "c", "d"], most=2), shorten(["a", "b"], most=2)
    ('a, b and 2 more', 'a, b')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
