"""The command line: parse, call, print. A command is imported when it is called."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

import typer

from commsim.cli.commands import Commands, hush

if TYPE_CHECKING:
    from types import FrameType

app = typer.Typer(
    name="commsim",
    cls=Commands,
    rich_markup_mode=None,  # half of the time of `--help` was rich's
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Predict collective communication on real machines, and score the prediction against measured curves.",
    epilog="commsim help COMMAND shows a command with examples. "
    "Exit status: 0 ok, 1 infeasible or a bar missed, 2 bad input, 3 a fault of commsim.",
)


def _version(value: bool) -> None:
    if value:
        from commsim import __version__

        typer.echo(f"commsim {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", "-V", callback=_version, is_eager=True, help="Print the version."),
    quiet: bool = typer.Option(False, "--quiet", "-q", callback=hush, help="Print the answer and errors only."),
) -> None:
    del version, quiet


_INTERRUPTED = 130  # 128 + SIGINT, as shells count


def main() -> None:
    """Entry point: every fault of the input ends in one screen of text and exit status 2, never in a traceback."""
    from commsim.errors import CommsimError, InfeasibleError, MeasurementError, MemoryLimitError

    interrupts = _remember_interrupts()
    try:
        # Not standalone: there Click swallows an interrupt and a closed pipe before we can say anything.
        sys.exit(app(standalone_mode=False) or 0)
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # Click makes status 1 of it
            sys.exit(0)
        if leaving.code == _INTERRUPTED:  # Typer has caught it before us
            _interrupted()
        raise
    except CommsimError as error:
        _complain(_one_screen(str(error)))
        badly_put = isinstance(error, MemoryLimitError) or not isinstance(error, (InfeasibleError, MeasurementError))
        sys.exit(2 if badly_put else 1)
    except (KeyboardInterrupt, typer.Abort):
        _interrupted()
    except BrokenPipeError:
        # The reader of our output left (`| head`): not an error. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        _complain(f"{error.filename or 'input or output'}: {error.strerror or error}")
        sys.exit(2)
    except MemoryError:
        _complain("out of memory: the scenario is too large for this machine")
        sys.exit(1)
    except Exception as error:
        if hasattr(error, "exit_code") and hasattr(error, "show"):  # Click's usage errors
            error.show()
            sys.exit(error.exit_code)
        if os.environ.get("COMMSIM_TRACEBACK"):
            raise
        if interrupts:  # a compiler's callback has swallowed it and then missed what it was about to make
            _interrupted()
        _complain(
            f"internal error: {type(error).__name__}: {error}\n"
            "This is a fault of commsim, not of your input: run again with COMMSIM_TRACEBACK=1 and report what it says."
        )
        sys.exit(3)


def _remember_interrupts() -> list[int]:
    """A list that every Ctrl-C from now on is added to; one that Python can only report, not raise, is not printed."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.default_int_handler(number, frame)

    def unraisable(hook: sys.UnraisableHookArgs) -> None:
        if not isinstance(hook.exc_value, KeyboardInterrupt):
            sys.__unraisablehook__(hook)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # ignored in the background of a shell
        signal.signal(signal.SIGINT, note)
        sys.unraisablehook = unraisable
    return seen


def _interrupted() -> NoReturn:
    _complain("interrupted; files written so far are whole")
    sys.exit(_INTERRUPTED)


def _complain(text: str) -> None:
    print(f"commsim: error: {text}" if "\n" not in text else f"commsim: error:\n{text}", file=sys.stderr)


def _one_screen(text: str, lines: int = 24, width: int = 400) -> str:
    shown = [line if len(line) <= width else line[: width - 3] + "..." for line in text.splitlines()]
    if len(shown) > lines:
        shown = [*shown[: lines - 1], f"... and {len(shown) - lines + 1} more lines"]
    return "\n".join(shown)
