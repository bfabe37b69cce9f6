"""How a command ends: in a clear line and an exit status."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from specproof.cli.say import say
from specproof.errors import SpecproofError

SOME_ROWS_FAILED, BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141

AUDIT_EXITS = {"pass": 0, "fail": SOME_ROWS_FAILED, "unjudged": BAD_INPUT}  # by the outcome of an audit


@contextmanager
def clear_exits() -> Iterator[None]:
    """End in one line on stderr, not in a traceback, where the cause lies outside of this program.

    Warnings are a line too.
    """
    warnings.showwarning = lambda message, *_: say(f"warning: {message}")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more when it exits, and would complain that it cannot.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(PIPE_CLOSED) from None
    except (SpecproofError, OSError) as error:
        say(str(error))
        raise typer.Exit(BAD_INPUT) from error
    except KeyboardInterrupt:
        say("interrupted")
        raise typer.Exit(INTERRUPTED) from None
