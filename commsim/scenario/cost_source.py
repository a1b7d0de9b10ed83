"""Which model answers what a call costs: of the machine that was named, the ranks on it, the library as it is set."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

import commsim
from commsim.collectives.semantics import NCCL_TESTS, REDUCING
from commsim.document.types import show, suggest
from commsim.errors import ScenarioError, TopologyError
from commsim.nccl.job_notes import NO_VERSION
from commsim.scenario.cost_question import AnyMachine, AskedCall, built, notes_of, setting_of
from commsim.scenario.cost_table import CostTable
from commsim.scenario.predictors import Cache, row_predictor
from commsim.scenario.setting import Setting
from commsim.scenario.strict import format_ranks, parse_ranks
from commsim.topology.graph import Topology

if TYPE_CHECKING:
    from commsim.scenario.collective import CollectiveSpec
    from commsim.scenario.rows import RowPredictor

GroupRanks: TypeAlias = int | str | Sequence[int] | npt.NDArray[np.integer[Any]] | None
"""So many, the first of the machine (also as ``"8"``); those listed, in their order (also as ``0 .. 31`` or ``0,8``);
None: all."""

KERNEL_STEP_BYTES = 16
"""What sizes of the kernels of frameworks are multiples of (vLLM 0.20.1, SGLang 0.5.10; commsim/kernels/choice.py)."""

_FIXED = ("root", "algorithm", "protocol", "channels")
"""What an item of a scenario may fix of its calls beside their type; facts have those that it does."""

_SIZE_IS = "the size column of nccl-tests: of all_gather, reduce_scatter, gather and scatter the array of all ranks"


@dataclass(frozen=True, eq=False)
class ModelSource:
    """The `CostSource` of a scenario's library on some ranks (None: all) of a machine."""

    setting: Setting
    topology: Topology
    work: CollectiveSpec
    ranks: tuple[int, ...] | None
    notes: tuple[str, ...] = ()
    """What of the question has no effect."""

    @property
    def step_bytes(self) -> int:
        """As of CostSource; the kernels of frameworks leave all that is no multiple of 16 B to NCCL."""
        kernels = self.setting.library.name == "custom_all_reduce"
        return max(self.work.item_bytes, KERNEL_STEP_BYTES if kernels else 1)

    @property
    def warnings(self) -> tuple[str, ...]:
        """As of CostSource."""
        return (*self.notes, *self.predictor.warnings)

    @cached_property
    def predictor(self) -> RowPredictor:
        """What predicts, of models that calls share."""
        return row_predictor(self.setting, self.topology, self.work, _models(), ranks=self.ranks)

    def seconds(self, nbytes: int) -> float:
        """As of CostSource."""
        return self.predictor.seconds(nbytes)

    def facts(self) -> dict[str, Any]:
        """What a table says of itself."""
        setting, work = self.setting, self.work
        library = setting.library
        return {
            "collective": work.collective,
            "n_ranks": self.predictor.n_ranks,
            "ranks": None if self.ranks is None else format_ranks(self.ranks),
            "machine": self.topology.name,
            "nodes": self.topology.nodes,
            "library": library.name,
            "library_version": library.version if library.name == "nccl" else None,
            "framework": library.framework,
            "mode": setting.mode,
            "dtype": work.dtype,
            "redop": work.redop if work.collective in REDUCING else None,
            **{key: value for key in _FIXED if (value := getattr(work, key)) is not None},
            **({"env": dict(library.env)} if library.env else {}),
            "commsim": commsim.__version__,
            "size_is": _SIZE_IS,
        }

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in self.__dataclass_fields__}


def cost_table(call: AskedCall, ranks: GroupRanks, machine: AnyMachine, *, warn: bool = False) -> CostTable:
    """The table of a call by its bytes, made anew; CommsimError says what of the question cannot be answered.

    A machine that does not say how many nodes it has gets as many as the ranks need. With `warn`, what the user should
    know comes as a Python warning too, but for the version of NCCL that is assumed.
    """
    source = model_source(call, ranks, machine)
    return CostTable(source.facts(), source, unspoken=(NO_VERSION,) if warn else None)


def model_source(call: AskedCall, ranks: GroupRanks, machine: AnyMachine) -> ModelSource:
    """What answers for a call, with the whole rows of its predictor; CommsimError as of `cost_table`."""
    named = call.collective
    if not isinstance(named, str) or named not in NCCL_TESTS:
        raise ScenarioError(f"collective: found {show(named)}, {suggest(str(named), NCCL_TESTS)}")
    asked = _asked(ranks)
    setting = setting_of(machine, asked, call)
    topology = machine if isinstance(machine, Topology) else built(setting.topology, setting.base_dir, asked is None)
    group, notes = _ranks_on(topology, asked, setting), notes_of(setting, topology)
    return ModelSource(setting, topology, setting.collectives[0], group, notes)


def shared_table(
    collective: str,
    ranks: GroupRanks,
    machine: AnyMachine,
    dtype: str | None = None,
    redop: str | None = None,
    mode: str | None = None,
    library: str | Mapping[str, Any] | None = None,
) -> CostTable:
    """The same as `cost_table` that warns, but one table for equal questions: a changed file is another question."""
    group = ranks if ranks is None or isinstance(ranks, (int, str)) else _listed(ranks)
    try:
        return _shared(collective, group, _key(machine), dtype, redop, mode, _key(library))
    except TypeError:  # what cannot be looked up is no question; say what is wrong with it
        return cost_table(AskedCall(collective, dtype, redop, mode, library), ranks, machine, warn=True)


@cache
def _models() -> Cache:
    """The models that all tables of a process share."""
    return Cache()


# -- the ranks ---------------------------------


def _asked(ranks: GroupRanks) -> int | tuple[int, ...] | None:
    """How many ranks, or which; ScenarioError for what are none."""
    if ranks is None or (type(ranks) is int and ranks > 0):
        return ranks
    try:
        if isinstance(ranks, (str, int)):
            if isinstance(ranks, int):
                raise ValueError(f"found {show(ranks)}, expected 1 or more, or a list of ranks")
            return _written(ranks.strip())
        return parse_ranks([index(rank) for rank in ranks])
    except (TypeError, ValueError) as error:
        text = str(error) if isinstance(error, ValueError) else f"found {show(ranks)}, expected a number or a list"
        raise ScenarioError(f"ranks: {text}") from None


def _written(text: str) -> int | tuple[int, ...]:
    """How many ranks, or which, of text; a ValueError that says what was found."""
    if not text or set(text) - set("0123456789 .+,"):
        form = "expected how many, such as 16, or which, such as '0 .. 31', '0 .. 63 +8' for every eighth, or 0,8"
        raise ValueError(f"found {show(text)}, {form}")
    if text.isdecimal():
        return _asked(int(text)) or 0
    return parse_ranks([int(part) if part.strip().isdecimal() else part for part in text.split(",")])


def _listed(ranks: Sequence[int] | npt.NDArray[np.integer[Any]]) -> tuple[int, ...]:
    """The ranks as they can be looked up; whether they are any is seen when a table is made."""
    try:
        return tuple(getattr(ranks, "tolist", lambda: ranks)())
    except TypeError:
        _asked(ranks)
        raise


def _ranks_on(topology: Topology, asked: int | tuple[int, ...] | None, setting: Setting) -> tuple[int, ...] | None:
    """The ranks of a machine that take part; None: all that the setting places."""
    if asked is None:
        return None
    n, most = topology.world_size, asked if isinstance(asked, int) else max(asked) + 1
    if most > n:
        of = f"{asked} ranks" if isinstance(asked, int) else f"rank {most - 1}"
        raise TopologyError(f"ranks: found {of}, expected at most {n}, those of {topology.name}: 0..{n - 1}")
    ranks = tuple(range(asked)) if isinstance(asked, int) else asked
    if setting.placement is not None:
        raise ScenarioError("ranks: found them beside the placement of the scenario, expected one of them")
    if ranks == tuple(range(n)):
        return None
    if setting.library.name != "nccl":
        raise ScenarioError(
            f"ranks: found {len(ranks)} of the {n} of {topology.name} with library {setting.library.name}, "
            "expected all of them: only the model of NCCL answers for a part of a machine; gpus_per_node describes "
            "one of fewer GPUs"
        )
    return ranks


# -- equal questions ---------------------------------


@dataclass(frozen=True)
class _Written:
    """A mapping as JSON text, which can be looked up."""

    text: str


@dataclass(frozen=True)
class _Read:
    """A scenario, which is equal to itself alone; kept, so that no other gets its `identity`."""

    identity: int
    setting: Setting = field(compare=False)


@dataclass(frozen=True)
class _Saved:
    """A file as it was at a time."""

    name: str
    changed_ns: int


def _key(value: AnyMachine | None) -> Any:
    """What equal machines or libraries have in common, to be looked up by."""
    if isinstance(value, Setting):
        return _Read(id(value), value)
    if isinstance(value, Mapping):
        try:
            return _Written(json.dumps(value, sort_keys=True))
        except (TypeError, ValueError) as error:
            raise ScenarioError(f"found {show(value)}, expected plain values as of a YAML file ({error})") from None
    if isinstance(value, Path) or (isinstance(value, str) and value.endswith((".yaml", ".yml"))):
        try:
            return _Saved(str(value), Path(value).stat().st_mtime_ns)
        except (OSError, ValueError):
            return str(value)  # the one who reads it says what is wrong
    return value


def _value(key: Any) -> Any:
    """The machine or library of a key."""
    match key:
        case _Written(text=text):
            return json.loads(text)
        case _Saved(name=name):
            return name
        case _Read(setting=setting):
            return setting
        case _:
            return key


@lru_cache(maxsize=1024)
def _shared(
    collective: str, ranks: Any, machine: Any, dtype: str | None, redop: str | None, mode: str | None, library: Any
) -> CostTable:
    call = AskedCall(collective, dtype, redop, mode, _value(library))
    return cost_table(call, ranks, _value(machine), warn=True)
