"""Executes the notebooks of docs/notebooks, writes what cells show: `python docs/notebooks.py` (`make notebooks`).

Each starts in a folder of its own, with `tests/data` as `files`. `tests/test_notebooks.py`
executes them too, and writes nothing.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from commsim.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = tuple(sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")))
SECONDS = 300  # of one cell

_NUMBER = re.compile(r"<ipython-input-[^>]*>|/tmp/ipykernel_\d+/\d+\.py")


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of its cells as they are now; nbclient.CellExecutionError where one fails."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "files").symlink_to(ROOT / "tests" / "data")
        NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                output.text = _NUMBER.sub("<cell>", output.text)
    return notebook


def main() -> int:
    """Write the notebooks anew."""
    for path in NOTEBOOKS:
        write_atomically(path, nbformat.writes(executed(path)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
