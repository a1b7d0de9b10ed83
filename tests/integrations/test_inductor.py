"""Inductor's estimate of collectives replaced by ours, on the CPU with torch's fake process group."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import commsim as cs
from commsim.errors import CommsimError
from commsim.integrations import inductor

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
"""Of torch's own modules, which inductor imports."""

MACHINE = "hgx-h100-ndr400"
ROWS, BYTES = 1024, 1024 * 1024 * 2  # of a tensor of bfloat16


@pytest.fixture(scope="module")
def groups() -> Iterator[dict[str, str]]:
    """The names of groups of a job of 16 ranks: all, the first node, a rail over two, one rank."""
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        distributed.init_process_group("fake", rank=0, world_size=16, store=FakeStore())
        made = {
            "world": distributed.group.WORLD,
            "node": distributed.new_group(list(range(8))),
            "rail": distributed.new_group([0, 8]),
            "one": distributed.new_group([0]),
        }
    yield {name: group.group_name for name, group in made.items()}
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def traced(groups: dict[str, str]) -> Any:
    """An FX graph with every collective that inductor knows, on fake tensors."""
    from torch.fx.experimental.proxy_tensor import make_fx

    ops, wait = torch.ops._c10d_functional, torch.ops._c10d_functional.wait_tensor
    world, node, rail, one = groups.values()

    def step(x: Any, out: Any) -> list[Any]:
        apart = [
            ops.all_reduce(x, "avg", world),
            ops.all_gather_into_tensor(x, 8, node),
            ops.reduce_scatter_tensor(x, "sum", 2, rail),
            ops.all_to_all_single(x, [ROWS // 8] * 8, [ROWS // 8] * 8, node),
            ops.broadcast(x, 0, node),
            ops.all_gather_into_tensor_out(x, 8, node, out=out),
            ops.all_reduce(x, "sum", one),
        ]
        fused = ops.all_gather_into_tensor_coalesced([x, x], 8, node)
        reduced = ops.all_reduce_coalesced([x, x], "max", node)
        return [wait(each) for each in (*apart, *fused, *reduced)]

    x = torch.empty(ROWS, 1024, dtype=torch.bfloat16)
    out = torch.empty(8 * ROWS, 1024, dtype=torch.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_fx(step, tracing_mode="fake")(x, out)


def expected() -> list[float]:
    """Milliseconds of the collectives of `traced`, by `commsim.cost`."""
    two = {"preset": MACHINE, "nodes": 2}
    node = list(range(8))
    whole = [
        cs.cost("all_reduce", BYTES, 16, two, dtype="bfloat16", redop="avg"),
        cs.cost("all_gather", 8 * BYTES, node, two),
        cs.cost("reduce_scatter", BYTES, [0, 8], two, dtype="bfloat16"),
        cs.cost("all_to_all", BYTES, node, two),
        cs.cost("broadcast", BYTES, node, two),
        cs.cost("all_gather", 8 * BYTES, node, two),
        0.0,
        cs.cost("all_gather", 16 * BYTES, node, two),
        cs.cost("all_reduce", 2 * BYTES, node, two, dtype="bfloat16", redop="max"),
    ]
    return [1e3 * seconds for seconds in whole]


def collectives_of(graph: Any) -> list[Any]:
    """The nodes of an FX graph that are collectives."""
    names = [(node, str(node.target)) for node in graph.graph.nodes if node.op == "call_function"]
    return [node for node, name in names if "_c10d_functional" in name and "wait_tensor" not in name]


def test_costs_of_an_fx_graph_are_those_of_cost(traced: Any) -> None:
    from torch._inductor import comm_analysis
    from torch._inductor.fx_passes.overlap_scheduling import estimate_collective_time

    nodes = collectives_of(traced)
    theirs = [estimate_collective_time(node) for node in nodes]
    with inductor.install(MACHINE):
        ours = [estimate_collective_time(node) for node in nodes]
        again = [comm_analysis.estimate_nccl_collective_runtime_from_fx_node(node, None, True) for node in nodes]
    assert ours == again == pytest.approx(expected(), rel=1e-3)
    assert [estimate_collective_time(node) for node in nodes] == theirs != ours


def test_latency_is_that_of_one_element(traced: Any) -> None:
    from torch._inductor.fx_passes.overlap_scheduling import estimate_collective_time

    node = collectives_of(traced)[1]
    with inductor.install(MACHINE):
        latency, half = estimate_collective_time(node, 0), estimate_collective_time(node, BYTES // 2)
    on = {"preset": MACHINE, "nodes": 2}
    assert latency == 1e3 * cs.cost("all_gather", 8 * 2, list(range(8)), on)
    assert half == 1e3 * cs.cost("all_gather", 4 * BYTES, list(range(8)), on)


def test_costs_of_inductors_own_graph_reach_its_scheduler(traced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph is lowered for a CPU, of whose collectives inductor takes no time: it is told that it is a GPU."""
    from torch._inductor import ir, scheduler
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    graph = GraphLowering(traced)
    inputs = [node.meta["val"] for node in traced.graph.nodes if node.op == "placeholder"]
    with ExitStack() as stack:
        for context in (
            V.set_graph_handler(graph),
            V.set_fake_mode(inputs[0].fake_mode),
            V.set_debug_handler(DebugContext()),
        ):
            stack.enter_context(context)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        graph.run(*inputs)
        nodes = scheduler.Scheduler(graph.operations).nodes
        monkeypatch.setattr(scheduler, "is_gpu", lambda device: True)
        with inductor.install(MACHINE):
            calls = [n for n in nodes if isinstance(n.node, ir._CollectiveKernel)]
            times = [n.get_estimated_runtime() for n in calls if not isinstance(n.node, ir._WaitKernel)]
    assert sorted(times) == pytest.approx(sorted(expected()), rel=1e-3)


def test_the_pass_that_hides_collectives_asks_for_costs(
    groups: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two shards of weights are gathered into one bucket, whose cost the pass takes from commsim."""
    import torch.utils._runtime_estimation as roofline
    from torch._inductor.fx_passes.overlap_scheduling import schedule_overlap_bucketing
    from torch.fx.experimental.proxy_tensor import make_fx

    ops, world = torch.ops._c10d_functional, groups["world"]

    def step(x: Any, first: Any, second: Any) -> Any:
        for shard in (first, second):
            x = x @ ops.wait_tensor(ops.all_gather_into_tensor(shard, 16, world))
        return x

    shard = torch.empty(64, 1024)
    # The rate of memory, which torch asks Triton for where there is a GPU: it is of the products, not of collectives.
    monkeypatch.setattr(roofline, "get_gpu_dram_gbps", lambda: 3000)
    costs, asked = inductor.InductorCosts(MACHINE), []
    of_fx_node = costs.of_fx_node

    def spy(node: Any, *given: Any, **named: Any) -> float:
        asked.append((node.target.name().partition("::")[2], of_fx_node(node, *given, **named)))
        return asked[-1][1]

    monkeypatch.setattr(costs, "of_fx_node", spy)
    with warnings.catch_warnings(), costs:
        warnings.simplefilter("ignore")
        traced = make_fx(step, tracing_mode="fake")(torch.empty(1024, 1024), shard, shard.clone())
        schedule_overlap_bucketing(traced, compute_estimator="analytical")  # else it times the products on a GPU
    bucket = 1e3 * cs.cost("all_gather", 2 * 16 * 64 * 1024 * 4, 16, {"preset": MACHINE, "nodes": 2})
    assert set(asked) == {("all_gather_into_tensor_out", bucket)}


def test_sends_and_receives_at_once_count_what_is_sent(groups: dict[str, str]) -> None:
    from torch._inductor.comm_analysis import get_collective_type_from_kernel_name

    costs = inductor.InductorCosts(MACHINE)
    tensors = [torch.empty(ROWS, 1024, dtype=torch.bfloat16, device="meta") for _ in range(2)]
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(f"x{i}") for i in range(2)]
    for node, tensor in zip(inputs, tensors, strict=True):
        node.meta["val"] = tensor
    operator = torch.ops._c10d_functional.batch_p2p_ops.default
    both = graph.call_function(operator, (["isend", "irecv"], [1, 1], [0, 0], inputs, groups["rail"]))
    assert get_collective_type_from_kernel_name(operator.name()).name == "P2P"
    on = {"preset": MACHINE, "nodes": 2}
    assert costs.of_fx_node(both) == 1e3 * cs.cost("send_recv", BYTES, [0, 8], on)


def test_a_topology_and_a_library_are_asked_as_they_are(traced: Any) -> None:
    from commsim.topology.presets import load_preset

    node, topology = collectives_of(traced)[0], load_preset(MACHINE, nodes=2)
    of_name = inductor.InductorCosts(MACHINE).of_fx_node(node)
    of_built = inductor.InductorCosts(topology).of_fx_node(node)
    old = inductor.InductorCosts(topology, library={"version": "2.19.3"}, mode="single").of_fx_node(node)
    given: dict[str, Any] = {"dtype": "bfloat16", "redop": "avg", "library": {"version": "2.19.3"}, "mode": "single"}
    assert of_built == of_name
    assert old == 1e3 * cs.cost("all_reduce", BYTES, 16, topology, **given)
    assert old != of_name


def test_a_job_larger_than_the_machine_is_refused(traced: Any) -> None:
    small = inductor.InductorCosts({"preset": MACHINE, "nodes": 1})
    with pytest.raises(CommsimError, match="found rank 15, expected at most 8"):
        small.of_fx_node(collectives_of(traced)[0])


def test_uninstalled_everything_is_as_it_was() -> None:
    from torch._inductor import comm_analysis, scheduler

    names = ("estimate_nccl_collective_runtime", "estimate_nccl_collective_runtime_from_fx_node")
    before = [getattr(comm_analysis, name) for name in names]
    costs = inductor.install(MACHINE)
    assert comm_analysis.estimate_nccl_collective_runtime == costs.node_estimate
    assert scheduler.estimate_nccl_collective_runtime == costs.node_estimate
    with pytest.raises(CommsimError, match="installed already"):
        inductor.install(MACHINE)
    with costs:  # already installed: once more changes nothing
        pass
    costs.uninstall()
    assert [getattr(comm_analysis, name) for name in names] == before
    assert scheduler.estimate_nccl_collective_runtime is before[0]
    with pytest.raises(ZeroDivisionError), inductor.install(MACHINE):
        _ = 1 / 0
    assert comm_analysis.estimate_nccl_collective_runtime is before[0]


@pytest.mark.parametrize(
    ("machine", "given", "message"),
    [
        ("nope", {}, "machine: found 'nope', which is no file"),
        (None, {}, "machine: found nothing, expected a preset"),
        (5, {}, "machine: found 5, expected a preset"),
        (MACHINE, {"mode": "double"}, "mode: found 'double'"),
        (MACHINE, {"library": "ncl"}, "library: found 'ncl', did you mean 'nccl'"),
        ({"preset": MACHINE, "nodes": 1}, {}, "found 16 ranks, expected at most 8"),
    ],
)
def test_a_machine_that_is_none_is_refused_at_install(
    groups: dict[str, str], machine: Any, given: dict[str, Any], message: str
) -> None:
    from torch._inductor import comm_analysis

    before = comm_analysis.estimate_nccl_collective_runtime
    with pytest.raises(CommsimError, match=message):
        inductor.install(machine, **given)
    assert comm_analysis.estimate_nccl_collective_runtime is before


def test_an_estimate_that_fails_is_inductors_own_with_one_warning(traced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import comm_analysis

    nodes = collectives_of(traced)
    theirs = [comm_analysis.estimate_nccl_collective_runtime_from_fx_node(node) for node in nodes]

    def broken(*given: Any) -> float:
        raise ZeroDivisionError("of a test")

    costs = inductor.InductorCosts(MACHINE)
    monkeypatch.setattr(costs, "_milliseconds", broken)
    with (
        costs,
        pytest.warns(UserWarning, match="could not estimate a collective: ZeroDivisionError: of a test") as caught,
    ):
        ours = [comm_analysis.estimate_nccl_collective_runtime_from_fx_node(node) for node in nodes]
    assert ours == theirs
    assert len(caught) == 1


def test_torch_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, commsim.integrations.inductor; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("bfloat16", "bfloat16"), ("float8_e4m3fn", "float8_e4m3"), ("bool", "uint8"), ("int16", "float16")],
)
def test_types_go_by_our_names_or_as_one_as_wide(dtype: str, name: str) -> None:
    assert inductor._dtype(getattr(torch, dtype)) == name
