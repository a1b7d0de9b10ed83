"""What types and reductions leave of NCCL's algorithms, from the facts of its source at each release."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commsim.errors import ScenarioError
from commsim.nccl.operation import Operation, passed_over, unknown_to
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.system import Graph, System
from commsim.nccl.tuner import candidates, choose, expected
from commsim.nccl.version import parse_version
from commsim.topology.presets import load_preset

# ncclNvlsSupported of src/include/device.h, 2.19.1 to 2.30.7; NCCL_NVLS_SUPPORTS of src/include/collectives.h in 2.17
# and 2.18 says the same. hostToDevRedOp of src/enqueue.cc makes avg PreMulSum or SumPostDiv, which are in neither.
_YES = {
    "int8": "", "uint8": "", "float8_e4m3": "", "float8_e5m2": "",
    "int32": "sum min max", "uint32": "sum min max", "int64": "sum min max", "uint64": "sum min max",
    "float16": "sum min max", "bfloat16": "sum min max", "float32": "sum", "float64": "sum",
}  # fmt: skip
REDOPS = ("sum", "prod", "min", "max", "avg")
NVLS = ("2.17.1", "2.18.1", "2.18.6", "2.19.3", "2.20.5", "2.21.5", "2.22.3", "2.23.4", "2.24.3", "2.26.2", "2.27.7",
        "2.28.9", "2.29.7", "2.30.7")  # fmt: skip


def system(nodes: int = 1, per_node: int = 8, *, collnet: bool = False) -> System:
    ring = Graph(8, 48.0, 48.0, "RING", "NVL", "PXB")
    return System(
        ranks=nodes * per_node,
        nodes=nodes,
        sm=90,
        cpu_vendor="intel",
        cpu_arch="x86_64",
        intra_type="NVL",
        inter_type="PXB",
        nic_latency_us=0.0,
        ring=ring,
        tree=replace(ring, pattern="BALANCED_TREE"),
        nvls=Graph(8, 40.0, 48.0, "NVLS", "NVL", "PXB") if per_node > 1 else None,
        coll_channels=16,
        collnet_direct=Graph(8, 48.0, 48.0, "COLLNET_DIRECT", "NVL", "PXB") if collnet else None,
        collnet_chain=replace(ring, pattern="TREE") if collnet else None,
        collnet=collnet,
        nvswitch=True,
    )


def algorithms(of: System, collective: str, release: str, dtype: str, redop: str) -> set[str]:
    found = candidates(of, collective, 1 << 26, parse_version(release), operation=Operation(dtype, redop))
    return {c.algorithm for c in found}


@pytest.mark.parametrize("release", NVLS)
def test_reductions_by_nvswitches_are_those_that_nccl_lists(release: str) -> None:
    one, three = system(), system(3)
    tree = parse_version(release) >= (2, 18, 0)
    for dtype, held in _YES.items():
        for redop in REDOPS:
            listed = redop in held.split()
            assert ("nvls" in algorithms(one, "all_reduce", release, dtype, redop)) == listed, (dtype, redop)
            assert ("nvls_tree" in algorithms(three, "all_reduce", release, dtype, redop)) == (listed and tree)
            scatters = listed and not (2, 18, 0) <= parse_version(release) < (2, 19, 0)
            assert ("nvls" in algorithms(one, "reduce_scatter", release, dtype, redop)) == scatters


# updateCollCostTable (2.22 and later) and its forerunners: 2.17 asks after it has made bytes of the data, 2.18 has no
# all_gather by NVLS, 2.19 and 2.22 and later do not ask, 2.20 and 2.21 ask for the type that the caller gave.
GATHERED = {"2.17.1": "", "2.18.6": "", "2.19.3": "any", "2.20.5": "own", "2.21.5": "own", "2.22.3": "any",
            "2.26.2": "any", "2.27.7": "any", "2.30.7": "any"}  # fmt: skip


@pytest.mark.parametrize("release", GATHERED)
def test_all_gather_by_nvswitches_hangs_on_the_type_in_few_releases(release: str) -> None:
    for dtype, held in _YES.items():
        for redop in REDOPS:  # which an all_gather does not have
            wanted = GATHERED[release] == "any" or (GATHERED[release] == "own" and bool(held))
            assert ("nvls" in algorithms(system(), "all_gather", release, dtype, redop)) == wanted


def test_nvls_of_several_nodes_gathers_from_2_27_on_and_only_through_the_network() -> None:
    for release, found in {"2.19.3": False, "2.26.2": False, "2.27.3": True, "2.30.7": True}.items():
        for collective in ("all_gather", "reduce_scatter"):
            through = system(2, collnet=True)
            assert ("nvls" in algorithms(through, collective, release, "float32", "sum")) == found
            assert "nvls" not in algorithms(system(2), collective, release, "float32", "sum")
            deaf = replace(through, collnet_gathers=False)
            assert "nvls" not in algorithms(deaf, collective, release, "float32", "sum")


@pytest.mark.parametrize(("release", "factor"), [("2.24.3", 1024.0), ("2.26.2", 1024.0), ("2.30.7", 1024.0)])
def test_rings_of_fp8_above_eight_ranks_count_1024_times(release: str, factor: float) -> None:
    version = parse_version(release)
    for dtype in ("float8_e4m3", "float8_e5m2"):
        for of, times in ((system(), 1.0), (system(2), factor), (system(9, 1), factor)):
            for collective in ("all_reduce", "reduce_scatter"):
                plain = expected(of, collective, 1 << 20, version)
                known = {(c.algorithm, c.protocol): c.time_us for c in plain}
                for c in candidates(of, collective, 1 << 20, version, operation=Operation(dtype, "sum")):
                    longer = times if c.algorithm == "ring" else 1.0
                    assert c.time_us == pytest.approx(longer * known[c.algorithm, c.protocol])
        moved = candidates(system(2), "all_gather", 1 << 20, version, operation=Operation(dtype, "sum"))
        assert moved == candidates(system(2), "all_gather", 1 << 20, version)


def test_pat_does_not_scale() -> None:
    alone = system(4, 1)
    for release in ("2.23.4", "2.26.2", "2.30.7"):
        for redop in REDOPS:
            for dtype in ("int32", "float32", "bfloat16"):
                assert ("pat" in algorithms(alone, "reduce_scatter", release, dtype, redop)) == (redop != "avg")
                assert "pat" in algorithms(alone, "all_gather", release, dtype, redop)


def test_switches_of_the_network_take_an_average_for_a_sum_but_multiply_nothing() -> None:
    through = system(2, collnet=True)
    for redop, found in {"sum": True, "min": True, "max": True, "avg": True, "prod": False}.items():
        assert ("collnet_chain" in algorithms(through, "all_reduce", "2.26.2", "float16", redop)) == found
    assert "collnet_chain" not in algorithms(through, "all_reduce", "2.26.2", "float8_e4m3", "sum")


def test_a_ring_is_kept_where_nothing_else_is_left_only_in_2_19_to_2_23() -> None:
    for release, kept in {"2.18.6": set(), "2.19.3": {"ring"}, "2.23.4": {"ring"}, "2.24.3": set()}.items():
        found = candidates(
            system(), "all_reduce", 1 << 20, parse_version(release), {"NCCL_ALGO": "NVLS"},
            operation=Operation("bfloat16", "avg"),
        )  # fmt: skip
        assert {c.algorithm for c in found} == kept


def test_releases_know_their_types_and_reductions() -> None:
    # src/nccl.h.in: ncclBfloat16 and ncclAvg from 2.10.3, ncclFloat8e4m3 from 2.24.3; enqueue.cc: fp8 from sm90.
    def said(release: str, dtype: str, redop: str, collective: str = "all_reduce", sm: int | None = 90) -> str:
        return unknown_to(parse_version(release), sm, collective, Operation(dtype, redop))

    assert "no bfloat16" in said("2.9.9", "bfloat16", "sum")
    assert "no avg" in said("2.9.9", "float32", "avg")
    assert "no float8_e5m2" in said("2.23.4", "float8_e5m2", "sum")
    assert "9.0" in said("2.24.3", "float8_e4m3", "sum", sm=80)
    assert not said("2.10.3", "bfloat16", "avg")
    assert not said("2.24.3", "float8_e4m3", "sum")
    assert not said("2.24.3", "float8_e4m3", "sum", sm=None)
    assert not said("2.8.3", "float8_e4m3", "avg", "all_gather")


def test_words_of_logs() -> None:
    assert Operation.named("half", "max") == Operation("float16", "max")
    assert Operation.named("f8e4m3", "sum") == Operation.named("fp8_e4m3", "sum") == Operation("float8_e4m3")
    assert Operation.named("", "none") == Operation.named("strange", "") == Operation()
    assert Operation.named("float", "mulsum").on_device == "PreMulSum"
    assert Operation("int32", "avg").on_device == "SumPostDiv"
    assert Operation("float32").alike(Operation("float64"))
    assert not Operation("bfloat16").alike(Operation("bfloat16", "avg"))


@pytest.mark.parametrize(
    ("preset", "nodes", "dtype", "redop", "chosen"),
    [
        ("hgx-h100", 1, "bfloat16", "sum", "nvls"),
        ("hgx-h100", 1, "bfloat16", "avg", "ring"),
        ("hgx-h100", 1, "float32", "prod", "ring"),
        ("hgx-h100", 1, "float32", "max", "ring"),
        ("hgx-h100", 1, "bfloat16", "max", "nvls"),
        ("hgx-h100", 1, "int8", "sum", "ring"),
        ("hgx-h100-ndr400", 2, "bfloat16", "sum", "nvls_tree"),
        ("hgx-h100-ndr400", 2, "float8_e4m3", "sum", "tree"),
    ],
)
def test_the_predictor_runs_what_nccl_chooses_for_the_operation(
    preset: str, nodes: int, dtype: str, redop: str, chosen: str
) -> None:
    options = Options((2, 26, 2), operation=Operation(dtype, redop))
    model = Predictor(load_preset(preset, nodes=nodes), options)
    best = choose(model.candidates("all_reduce", 1 << 30))
    assert best is not None
    assert model.choose("all_reduce", 1 << 30) == (best.algorithm, best.protocol) == (chosen, "Simple")


def test_an_average_takes_as_long_as_the_ring_that_it_is() -> None:
    def seconds(operation: Operation, env: dict[str, str]) -> float:
        model = Predictor(load_preset("hgx-h100"), Options((2, 26, 2), env, operation=operation))
        return model.predict("all_reduce", 1 << 30).time_s

    average = seconds(Operation("bfloat16", "avg"), {})
    assert average == seconds(Operation(), {"NCCL_ALGO": "Ring"}) > 1.2 * seconds(Operation(), {})


def test_what_nccl_cannot_run_is_refused_with_the_reason() -> None:
    options = Options((2, 26, 2), {"NCCL_ALGO": "NVLS"}, operation=Operation("bfloat16", "avg"))
    with pytest.raises(ScenarioError, match=r"NVLS: no NVSwitch does an avg of bfloat16 \(PreMulSum\)"):
        Predictor(load_preset("hgx-h100"), options).predict("all_reduce", 1 << 20)
    with pytest.raises(ScenarioError, match=r"compute capability 9\.0"):
        Predictor(load_preset("dgx-a100"), Options((2, 26, 2), operation=Operation("float8_e4m3"))).predict(
            "all_reduce", 1 << 20
        )


def test_reasons_name_what_is_asked() -> None:
    old = passed_over(system(), "all_gather", "nvls", (2, 17, 1), Operation())
    assert old == "no NVSwitch does a sum of int8"
    assert passed_over(system(4, 1), "reduce_scatter", "pat", (2, 26, 2), Operation("int32", "avg")) == (
        "PAT does not scale, and an avg of int32 is a SumPostDiv"
    )
