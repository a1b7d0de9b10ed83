"""What the launcher says of ranks that end by themselves, and the way out of a rank."""

from __future__ import annotations

import subprocess
import sys

import pytest

from commsim.errors import MeasurementError
from commsim.measure.launcher import Host, launch
from commsim.measure.run import Run

RUN = Run(name="none", tasks=(), backend="gloo", world_size=1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("echo oh >&2; kill -ABRT $$", "rank 0 was killed by signal 6 (SIGABRT)\nlast words of rank 0:\noh\n"),
        ("echo oh >&2; exit 7", "rank 0 ended with status 7\nlast words of rank 0:\noh\n"),
        ("kill -KILL $$", "rank 0 was killed by signal 9 (SIGKILL)\nfinished rows are kept"),
        ("echo 'commsim: no room' >&2; exit 1", "rank 0: no room\nfinished rows are kept"),
    ],
)
def test_last_words(words: str, said: str) -> None:
    with pytest.raises(MeasurementError) as fault:
        launch(RUN, print, hosts=[Host(("sh", "-c", words))])
    assert str(fault.value).startswith(said)


def test_leaving_keeps_what_was_said_and_the_status() -> None:
    """Not even a thread that never ends, nor a handler of Python's end, delays or changes it."""
    words = (
        "import atexit, threading\n"
        "from commsim.measure.rank_end import end_process\n"
        "atexit.register(print, 'taken apart')\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "print('said', end='')\n"
        "end_process(3)"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (3, "said")
