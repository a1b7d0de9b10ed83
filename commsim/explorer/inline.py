"""The explorer in a notebook: a server of its own in a frame."""

from __future__ import annotations

import atexit
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import yaml

from commsim.errors import CommsimError

HEIGHT = 900  # pixels of the frame


class InlineExplorer:
    """A running `commsim explore` that a notebook shows; `close` ends it, and so does the end of the notebook."""

    def __init__(self, scenario: str | Path | Mapping[str, Any] | None, overrides: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="commsim-explore-")
        words = [] if scenario is None else [self._file(scenario), *overrides]
        command = [sys.executable, "-m", "commsim", "explore", "--no-browser", "--framed", *words]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        assert self._process.stdout is not None
        atexit.register(self.close)
        first = self._process.stdout.readline()
        if not first.startswith("commsim explore: "):
            _, said = self._process.communicate()
            self.close()
            raise CommsimError(said.removeprefix("commsim: error: ").strip() or "the explorer did not start")
        self.address = first.split()[2]

    def _file(self, scenario: str | Path | Mapping[str, Any]) -> str:
        if not isinstance(scenario, Mapping):
            return str(scenario)
        path = Path(self._folder.name) / "scenario.yaml"
        path.write_text(yaml.safe_dump(dict(scenario)), encoding="utf-8")
        return str(path)

    def close(self) -> None:
        """Ends the server."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        self._folder.cleanup()
        atexit.unregister(self.close)

    def __repr__(self) -> str:
        return f"commsim explore: {self.address}"

    def _repr_html_(self) -> str:
        address, size = escape(self.address), f'width="100%" height="{HEIGHT}"'
        return (
            f'<iframe src="{address}" title="commsim explore" {size} style="border: 0"></iframe>'
            f'<p><a href="{address}" target="_blank" rel="noopener">in a tab of its own</a></p>'
        )
