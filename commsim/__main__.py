"""The program: ``commsim`` and ``python -m commsim``. Whoever interrupts it while it loads sees no traceback either."""

import sys


def main() -> None:
    """Load the command line and run it."""
    try:
        from commsim.cli import main as run
    except KeyboardInterrupt:
        print("commsim: error: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
