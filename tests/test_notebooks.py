"""The notebooks run, and what they show is there."""

from __future__ import annotations

import warnings
from pathlib import Path

import nbformat
import notebooks
import pytest

import commsim as cs
from commsim.errors import CommsimError, CommsimWarning

TWO = {
    "name": "two <nodes>",
    "topology": {"preset": "hgx-h100-ndr400", "nodes": 2},
    "workload": [{"collective": "all_reduce", "sizes": "1 MiB .. 4 MiB x2"}],
}


@pytest.mark.slow
@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_says_what_it_said(path: Path) -> None:
    def text(notebook: nbformat.NotebookNode) -> str:
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
        return "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stdout")  # however cut

    again = notebooks.executed(path)
    assert text(again) == text(nbformat.read(path, as_version=4)), "run `make notebooks`"
    assert any("text/html" in output.get("data", ()) for cell in again.cells for output in cell.get("outputs", ()))


def test_there_are_four_notebooks_and_the_page_links_them(checkout: Path) -> None:
    page = (checkout / "docs" / "guides" / "notebooks.md").read_text()
    assert len(notebooks.NOTEBOOKS) == 4
    assert all(f"../notebooks/{path.name}" in page for path in notebooks.NOTEBOOKS)


def test_names_are_listed_for_completion() -> None:
    assert {"run", "compare", "plan", "sweep", "cost", "topologies"} <= set(dir(cs))
    assert not any(name.startswith("_") and name != "__version__" for name in dir(cs))


def test_an_answer_shows_sentences_picture_and_table() -> None:
    result = cs.run(TWO)
    shown = result._repr_mimebundle_()
    assert set(shown) == {"text/plain", "text/html"}
    assert shown["text/plain"] == repr(result)
    page = shown["text/html"]
    assert "<svg" in page
    assert "<table" in page
    assert "two &lt;nodes&gt;" in page
    assert "two <nodes>" not in page
    assert set(result._repr_mimebundle_(exclude=["text/html"])) == {"text/plain"}
    assert set(result._repr_mimebundle_(include=["text/html"])) == {"text/html"}


def test_a_figure_shows_itself_without_pyplot() -> None:
    assert cs.plot(cs.run(TWO))._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_warnings_are_those_of_python() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = cs.run(TWO, "topology.oversubscription=4")  # two nodes hang on one leaf: it has no effect
    mine = [w for w in told if issubclass(w.category, CommsimWarning)]
    assert mine
    assert {str(w.message) for w in mine} <= set(result.warnings)
    assert all(w.filename == __file__ for w in mine)  # the caller's line, not the library's


def test_machines_are_a_table() -> None:
    machines = cs.topologies()
    frame = machines.to_frame()
    assert frame.loc[frame["name"] == "hgx-h100-ndr400", "nic_Gbps"].item() == 400
    assert "<table" in machines._repr_html_()
    assert "hgx-h100-ndr400" in repr(machines)
    with pytest.raises(CommsimError, match="has no picture"):
        machines.plot()


def test_a_fault_in_a_notebook_is_its_message() -> None:
    with pytest.raises(CommsimError) as raised:
        cs.run({**TWO, "workload": []})
    (text,) = raised.value._render_traceback_()
    assert "workload" in text
    assert "Traceback" not in text


def test_a_picture_that_an_answer_has_not_is_refused() -> None:
    with pytest.raises(CommsimError, match="expected one of those"):
        cs.plot(cs.run(TWO), "nothing")
