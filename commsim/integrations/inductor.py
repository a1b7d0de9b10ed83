"""commsim's costs in the place of torch inductor's own estimate of a collective.

Inductor orders and buckets collectives by `torch._inductor.comm_analysis.estimate_nccl_collective_runtime`, of a node
of its own graph, and `..._from_fx_node`, of one of an FX graph (torch 2.13.0). Both give milliseconds. `install` puts
ours there and wherever inductor has them by name::

    with commsim.integrations.inductor.install("hgx-h100-ndr400"):
        compiled = torch.compile(model)
        compiled(batch)

Rank i of the job is rank i of the machine. A group is asked where it is, so that the ranks of one node and those of one
rail of many nodes have costs of their own. What inductor counts as bytes differs between its two functions, and is
neither what nccl-tests counts; here both count as nccl-tests does. Nothing of torch is imported before `install`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import ModuleType, TracebackType
from typing import Any, Self

from commsim.collectives.semantics import GATHERING, ITEM_BYTES, NCCL_TESTS, REDUCING
from commsim.errors import CommsimError, MeasurementError
from commsim.scenario.cost_question import AnyMachine, AskedCall, of_job
from commsim.scenario.cost_source import cost_table, shared_table
from commsim.topology.graph import Topology

_COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "isend": "send_recv",
    "irecv": "send_recv",
    "batch_p2p": "send_recv",
}
"""By what the name of a kernel holds (as in torch 2.13.0, `get_collective_type_from_kernel_name`, and broadcast)."""

_REDUCTIONS = {"avg": "avg", "product": "prod", "min": "min", "max": "max"}
"""Reductions by the names of functional collectives; all others go as a sum does."""

_DTYPES = {"float8_e4m3fn": "float8_e4m3"} | {name: name for name in ITEM_BYTES}
_OF_WIDTH = {1: "uint8", 2: "float16", 4: "int32", 8: "int64"}
"""Types that NCCL does not have go as one as wide."""

_INPUTS = ("input", "inputs", "tensor", "tensors")
"""What functional collectives call what they are given (torch 2.13.0, their schemas)."""

_NODE, _FX_NODE = "estimate_nccl_collective_runtime", "estimate_nccl_collective_runtime_from_fx_node"


class InductorCosts:
    """What inductor's collectives cost on a machine, in milliseconds; a context in which inductor asks them."""

    def __init__(
        self, machine: AnyMachine, *, mode: str | None = None, library: str | Mapping[str, Any] | None = None
    ) -> None:
        """`machine`, `mode` and `library` are those of `commsim.cost`."""
        self._machine, self._mode, self._library = machine, mode, library
        self._replaced: list[tuple[ModuleType, str, Any]] = []
        self._failed = False

    # -- what inductor calls ---------------------------------

    def of_node(self, node: Any) -> float:
        """Milliseconds of a collective of inductor's graph: `estimate_nccl_collective_runtime`."""
        from torch._inductor.comm_analysis import get_ir_node_size_numel

        collective = _collective(node.python_kernel_name or "")
        ranks = _ranks_of(node.constant_args[-1])
        inputs = node.inputs[:-1] if _writes_out(node.op_overload) else node.inputs
        sizes = [(get_ir_node_size_numel(each.layout.size), each.layout.dtype) for each in inputs]
        given = node.constant_args  # lists among them flattened; of reductions the first says which
        return self._milliseconds(collective, ranks, _one_way(sizes, given), given[0])

    def of_fx_node(self, fx_node: Any, override_size: int | None = None, use_nccl_estimator: bool = True) -> float:
        """Milliseconds of a collective of an FX graph: `estimate_nccl_collective_runtime_from_fx_node`.

        `override_size` is that of the inputs of one rank, in bytes; at 0 inductor asks for the latency, which is that
        of one element. NCCL's own estimator is not asked.
        """
        from torch._inductor.comm_analysis import get_fx_node_size_numel
        from torch.fx.operator_schemas import normalize_function

        del use_nccl_estimator
        normal = normalize_function(
            fx_node.target, args=fx_node.args, kwargs=fx_node.kwargs, normalize_to_only_use_kwargs=True
        )
        assert normal is not None, fx_node.target
        given = normal.kwargs
        inputs = next(given[name] for name in _INPUTS if name in given)
        tensors = [node.meta["val"] for node in (inputs if isinstance(inputs, (list, tuple)) else [inputs])]
        every = [(get_fx_node_size_numel(tensor.size()), tensor.dtype) for tensor in tensors]
        sizes = _one_way(every, given.get("op_list", ()))
        if override_size is not None:
            sizes = [(max(1, override_size // sizes[0][1].itemsize), sizes[0][1])]
        collective, ranks = _collective(fx_node.target.name()), _ranks_of(given["group_name"])
        return self._milliseconds(collective, ranks, sizes, given.get("reduce_op"))

    def _milliseconds(
        self, collective: str | None, ranks: Sequence[int], sizes: Sequence[tuple[int, Any]], redop: object
    ) -> float:
        """Of a call on inputs of so many elements of a type; coalesced ones as one call, as NCCL fuses them."""
        if collective is None or len(ranks) < 2:  # inductor has no cost for others either
            return 0.0
        nbytes = sum(count * dtype.itemsize for count, dtype in sizes)
        if collective in GATHERING:  # inputs are those of one rank
            nbytes *= len(ranks)
        dtype, named = "uint8", "sum"  # of bytes that are only moved the type does not matter
        if collective in REDUCING and sizes:
            dtype, named = _dtype(sizes[0][1]), _REDUCTIONS.get(str(redop), "sum")
        machine, mode, library = self._of_world
        return 1e3 * shared_table(collective, ranks, machine, dtype, named, mode, library)(nbytes)

    @cached_property
    def _of_world(self) -> tuple[AnyMachine, str | None, str | Mapping[str, Any] | None]:
        """The machine with the nodes that the job has, with mode and library where it does not hold them."""
        from torch import distributed

        return self._of(distributed.get_world_size())

    def _of(self, ranks: int | None) -> tuple[AnyMachine, str | None, str | Mapping[str, Any] | None]:
        """As `_of_world`, of a job of so many ranks; None: of all of the machine."""
        if isinstance(self._machine, Topology):
            return self._machine, self._mode, self._library
        return of_job(self._machine, ranks, self._mode, self._library), None, None

    def check(self) -> None:
        """CommsimError where the machine, the mode or the library is none, or has too few ranks for the job.

        How many the job has is known once torch has its process group; before that the machine alone is looked at.
        """
        from torch import distributed

        ready = distributed.is_available() and distributed.is_initialized()
        ranks = distributed.get_world_size() if ready else None
        machine, mode, library = self._of(ranks)
        cost_table(AskedCall(NCCL_TESTS[0], "float32", "sum", mode, library), ranks, machine)

    # -- in inductor's place ---------------------------------

    def node_estimate(self, node: Any) -> float:
        """`of_node`; where that fails inductor's own estimate, so that a compilation goes on."""
        try:
            return self.of_node(node)
        except Exception as error:  # of whatever kind: no estimate is worth a compilation
            return float(self._theirs(_NODE, error)(node))

    def fx_node_estimate(
        self, fx_node: Any, override_size: int | None = None, use_nccl_estimator: bool = True
    ) -> float:
        """`of_fx_node`; where that fails inductor's own estimate, so that a compilation goes on."""
        try:
            return self.of_fx_node(fx_node, override_size, use_nccl_estimator)
        except Exception as error:  # of whatever kind: no estimate is worth a compilation
            return float(self._theirs(_FX_NODE, error)(fx_node, override_size, use_nccl_estimator))

    def _theirs(self, name: str, error: Exception) -> Callable[..., float]:
        """Inductor's own function of a name; that it is asked is a warning the first time."""
        if not self._failed:
            self._failed = True
            text = (
                f"{type(error).__name__}: {error}; from here on inductor's own estimate is taken where commsim's fails"
            )
            with suppress(UserWarning):  # where warnings are errors too
                warnings.warn(f"commsim could not estimate a collective: {text}", stacklevel=2)
        for _, of, theirs in self._replaced:
            if of == name:
                return theirs  # type: ignore[no-any-return]
        raise error  # uninstalled, and still asked by one who kept the function

    def install(self) -> Self:
        """Puts the costs in the place of inductor's functions until `uninstall`, or the end of a ``with`` block.

        MeasurementError where torch is missing or has no such functions; CommsimError where others are installed, and
        of `check`.
        """
        try:
            import torch._inductor.comm_analysis as analysis
            import torch._inductor.scheduler  # which has one of them by name
        except ImportError as error:
            raise MeasurementError(f"found no torch inductor ({error}), expected torch: commsim[measure]") from None
        mine: dict[str, Callable[..., float]] = {_NODE: self.node_estimate, _FX_NODE: self.fx_node_estimate}
        if not hasattr(analysis, _NODE):
            raise MeasurementError(f"found torch {torch.__version__} without {_NODE}, expected one as 2.13.0 has it")
        if isinstance(getattr(getattr(analysis, _NODE), "__self__", None), InductorCosts):
            raise CommsimError("found costs of commsim installed already, expected them to be uninstalled first")
        self.check()
        for name, ours in mine.items():
            theirs = getattr(analysis, name, None)
            for module in [m for at, m in sys.modules.items() if at.startswith("torch._inductor")]:
                if theirs is not None and vars(module).get(name) is theirs:
                    self._replaced.append((module, name, theirs))
                    setattr(module, name, ours)
        return self

    def uninstall(self) -> None:
        """Puts inductor's own functions back; without an `install` before it nothing happens."""
        while self._replaced:
            module, name, theirs = self._replaced.pop()
            setattr(module, name, theirs)

    def __enter__(self) -> Self:
        return self if self._replaced else self.install()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.uninstall()


def install(
    machine: AnyMachine, *, mode: str | None = None, library: str | Mapping[str, Any] | None = None
) -> InductorCosts:
    """Inductor asks commsim from now on, until `uninstall` of what is returned or the end of its ``with`` block.

    `machine`, `mode` and `library` are those of `commsim.cost`; a machine that does not say how many nodes it has gets
    as many as the job needs. Faults of the machine are raised now. Where an estimate fails as inductor compiles, its
    own is taken, with one warning.
    """
    return InductorCosts(machine, mode=mode, library=library).install()


def _collective(kernel: str) -> str | None:
    """The collective of a kernel by its name; None of those that have no cost."""
    return next((name for part, name in _COLLECTIVES.items() if part in kernel), None)


def _ranks_of(group: Any) -> list[int]:
    """The ranks of a process group of the job, by its name, or by the node of a graph that stands for it."""
    from torch import distributed
    from torch.distributed.distributed_c10d import _resolve_process_group

    resolved = _resolve_process_group(group) if isinstance(group, str) else group.meta["val"]
    return distributed.get_process_group_ranks(resolved)  # type: ignore[no-any-return]


def _one_way(sizes: Sequence[tuple[int, Any]], given: Sequence[object]) -> Sequence[tuple[int, Any]]:
    """The inputs of a call; of sends and receives at once those that are sent, where any are."""
    ways = [way for way in given if way in ("isend", "irecv")]
    sent = [size for size, way in zip(sizes, ways, strict=False) if way == "isend"]
    return sent or sizes


def _writes_out(operator: Any) -> bool:
    """Whether a kernel is given its output as the last of its inputs."""
    return any(argument.name == "out" for argument in operator._schema.arguments)


def _dtype(dtype: Any) -> str:
    """Our name of a torch type."""
    return _DTYPES.get(str(dtype).removeprefix("torch."), _OF_WIDTH.get(dtype.itemsize, "int64"))
