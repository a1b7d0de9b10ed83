"""Mutation runs: small changes of the package, one at a time, each against the tests of its own folder.

usage: python tests/mutants.py [--count 300] [--seed 28] [--folders training planner ...] [--at FILE:LINE] [--list]

A folder's mutants are drawn by the seed from all of its changes; the first ones of a longer run are those of a shorter
one. A mutant is killed when a test fails or runs for ever. The changes are written into a copy of the checkout in a
temporary folder, never into the checkout. `equivalent_mutants.csv` names those that no test can tell from the original.

Ready-made tools don't fit: mutmut 3 changes only functions, not the constants of a module, and calls them through
wrappers, which numba can't compile; cosmic-ray changes the files of the checkout in place. Neither draws a sample.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import csv
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
FOLDERS = ("training", "planner", "nccl", "engine", "collectives")
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.csv")
BAR = 0.85

_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip

_UNTOUCHED = (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)
"""What is written for people or for mypy; an `assert` holds what no input can break."""


@dataclass(frozen=True)
class Mutant:
    """One change: the file and its place, the function around it, and the words before and after."""

    file: str
    number: int
    line: int
    function: str
    change: str

    @property
    def name(self) -> tuple[str, str, str]:
        """What names the change when lines above it move."""
        return self.file, self.function, self.change

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.change}"


@dataclass(frozen=True)
class _Change:
    node: ast.AST
    function: str
    after: Callable[[], str]
    """Changes the tree and returns the words of the node after it."""


def mutants_of(file: str, source: str) -> list[Mutant]:
    """All mutants of a file, in the order of the source."""
    return [nth_mutant(file, source, number) for number in range(sum(1 for _ in _changes(ast.parse(source))))]


def nth_mutant(file: str, source: str, number: int) -> Mutant:
    """The mutant of that number of a file."""
    change = list(_changes(ast.parse(source)))[number]
    line: int = getattr(change.node, "lineno", 0)
    words = f"{_words(change.node)} -> {_applied(source, number)[1]}"
    if isinstance(change.node, ast.Constant):  # of which a function has many alike
        words += f" in {source.splitlines()[line - 1].strip()}"
    return Mutant(file, number, line, change.function, words)


def mutated(source: str, number: int) -> str:
    """The source with its change of that number."""
    return _applied(source, number)[0]


def _applied(source: str, number: int) -> tuple[str, str]:
    tree = ast.parse(source)
    for place, change in enumerate(_changes(tree)):
        if place == number:
            words = change.after()
            return ast.unparse(ast.fix_missing_locations(tree)) + "\n", words
    raise IndexError(number)


def _words(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 200 else f"{text[:197]}..."


def _changes(tree: ast.Module) -> Iterator[_Change]:
    """Every change of a tree that no other one has touched."""
    yield from _inside(tree, "module")


def _inside(node: ast.AST, function: str) -> Iterator[_Change]:
    if isinstance(node, _UNTOUCHED) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
        return
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = node.name if function == "module" else f"{function}.{node.name}"
    yield from _of_node(node, function)
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_params"} or isinstance(node, ast.Raise):
            continue
        for place, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.stmt) and isinstance(value, list) and _removable(child):
                yield _Change(child, function, _removal(value, place))
            if isinstance(child, ast.AST) and not _is_docstring(child):
                yield from _inside(child, function)


def _of_node(node: ast.AST, function: str) -> Iterator[_Change]:
    def set_to(field: str, value: object, place: int | None = None) -> Callable[[], str]:
        def change() -> str:
            if place is None:
                setattr(node, field, value)
            else:
                getattr(node, field)[place] = value
            return _words(node)

        return change

    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in _SWAPPED:
        yield _Change(node, function, set_to("op", _SWAPPED[type(node.op)]()))
    elif isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            yield _Change(node, function, set_to("ops", _SWAPPED[type(operator)](), place))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        other = ast.UAdd() if isinstance(node.op, ast.USub) else None
        yield _Change(node, function, set_to("op", other) if other else set_to("operand", _negated(node.operand)))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        yield _Change(node, function, set_to("value", _other(node.value)))


def _negated(of: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), of)


def _other(value: bool | int | float) -> bool | int | float:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else (value * 1.25 or 1.0)


def _removable(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return any(isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets)
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call)
    return isinstance(statement, ast.AugAssign | ast.Raise | ast.Continue | ast.Break)


def _removal(statements: list[Any], place: int) -> Callable[[], str]:
    def change() -> str:
        statements[place] = ast.Pass()
        return "pass"

    return change


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def sample(folder: str, count: int, seed: int) -> list[Mutant]:
    """`count` mutants of a folder of the package: the first ones of its changes in an order drawn by the seed."""
    every = []
    for path in sorted((CHECKOUT / "commsim" / folder).rglob("*.py")):
        every += [(path, number) for number in range(sum(1 for _ in _changes(ast.parse(path.read_text()))))]
    random.Random(f"{seed} {folder}").shuffle(every)
    return [nth_mutant(str(path.relative_to(CHECKOUT)), path.read_text(), number) for path, number in every[:count]]


def at(place: str) -> list[Mutant]:
    """All mutants of one line, `FILE:LINE`."""
    file, _, line = place.partition(":")
    source = (CHECKOUT / file).read_text()
    numbers = [i for i, c in enumerate(_changes(ast.parse(source))) if getattr(c.node, "lineno", 0) == int(line)]
    return [nth_mutant(file, source, number) for number in numbers]


def equivalent() -> dict[tuple[str, str, str], str]:
    """Why no test can tell a mutant from the original, by the mutant's name."""
    with EQUIVALENT.open(newline="") as stream:
        return {(r["file"], r["function"], r["change"]): r["reason"] for r in csv.DictReader(stream)}


class Copy:
    """A copy of the checkout whose package may be changed; tests import it, and nothing of the checkout itself."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.root.mkdir()
        for entry in CHECKOUT.iterdir():
            if entry.name in {"commsim", "tests"}:
                shutil.copytree(entry, self.root / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
            elif not entry.name.startswith(".") and entry.name != "out":
                (self.root / entry.name).symlink_to(entry)
        if (CHECKOUT.parent / "shared").exists():
            (folder / "shared").symlink_to(CHECKOUT.parent / "shared")
        self.caches = folder / "numba"

    def tests(self, file: str, cpu_s: int) -> int:
        """Exit status of the tests of a file's folder, those first that name its module; -9 after so much CPU time."""
        folder, module = Path(file).parts[1], Path(file).stem
        files = sorted((self.root / "tests" / folder).glob("test_*.py"))
        files.sort(key=lambda path: f"{folder}.{module}" not in path.read_text())
        environment = os.environ | {
            "PYTHONPATH": str(self.root), "NUMBA_CACHE_DIR": str(self.caches), "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        limit = ["/bin/sh", "-c", 'ulimit -t "$0"; exec "$@"', str(cpu_s)]
        command = [*limit, sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m"]
        run = subprocess.Popen(
            [*command, "not slow and not benchmark_bar", *map(str, files)], cwd=self.root, env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            return run.wait(timeout=10 * cpu_s)
        except subprocess.TimeoutExpired:
            return -9
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            shutil.rmtree(self.root / ".hypothesis", ignore_errors=True)  # no mutant learns from the one before

    def survives(self, mutant: Mutant, cpu_s: int) -> bool:
        """Whether all tests of its folder pass with the mutant."""
        path = self.root / mutant.file
        source = path.read_text()
        path.write_text(mutated(source, mutant.number))
        try:
            return self.tests(mutant.file, cpu_s) == 0
        finally:
            path.write_text(source)


def _run(mutants: list[Mutant], cpu_s: int) -> list[Mutant]:
    """The survivors that are not equivalent; what becomes of each mutant is printed."""
    survivors, known = [], equivalent()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder))
        pristine = set()
        for mutant in mutants:
            part = Path(mutant.file).parts[1]
            if part not in pristine and copy.tests(mutant.file, cpu_s):
                raise SystemExit(f"the tests of {part} fail without any change")
            pristine.add(part)
            start = time.monotonic()
            outcome = "equivalent"
            if mutant.name not in known:
                outcome = "SURVIVED" if copy.survives(mutant, cpu_s) else "killed"
            survivors += [mutant] if outcome == "SURVIVED" else []
            print(f"{outcome:10} {time.monotonic() - start:5.0f} s  {mutant}", flush=True)
    counted = sum(m.name not in known for m in mutants)
    killed = counted - len(survivors)
    if counted:
        print(f"{killed} of {counted} killed ({killed / counted:.1%}), {len(mutants) - counted} equivalent")
    return survivors


def main() -> int:
    """Exit status 0 where at least `BAR` of the mutants are killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="mutants, evenly from all folders")
    parser.add_argument("--seed", type=int, default=28)
    parser.add_argument("--folders", nargs="+", default=FOLDERS, choices=FOLDERS)
    parser.add_argument("--at", nargs="+", default=[], help="all mutants of these lines, FILE:LINE")
    parser.add_argument("--cpu-s", type=int, default=300, help="CPU seconds after which a mutant counts as killed")
    parser.add_argument("--list", action="store_true", help="print the mutants, run none")
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # so that a run that is stopped ends its tests, removes its copy
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    share = -(-given.count // len(given.folders))
    mutants = [m for place in given.at for m in at(place)]
    mutants = mutants or [m for folder in given.folders for m in sample(folder, share, given.seed)]
    if given.list:
        print(*mutants, sep="\n")
        return 0
    print(f"{len(mutants)} mutants, seed {given.seed}", flush=True)
    survivors, known = _run(mutants, given.cpu_s), equivalent()
    return int(len(survivors) > (1 - BAR) * sum(m.name not in known for m in mutants))


if __name__ == "__main__":
    sys.exit(main())
