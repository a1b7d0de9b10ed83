"""What every process of a pool does first."""

from __future__ import annotations


def follow_parent() -> None:
    """Leaves Ctrl-C to the parent, and ends with it."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """Ends this process when its parent ends, however that does: one that is killed cannot stop its pool."""
    import multiprocessing
    import os
    import threading
    from multiprocessing.connection import wait

    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def leave() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=leave, daemon=True).start()
