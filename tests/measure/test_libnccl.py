"""How libnccl is called: types, layouts and words, without a GPU."""

from __future__ import annotations

import ctypes
import struct

import pytest
from rehearsal.layer import Rehearsal
from rehearsal.library import _ARGUMENTS
from rehearsal.settings import VARIABLE, Settings, environment, settings

from commsim.collectives.semantics import ITEM_BYTES
from commsim.errors import MeasurementError
from commsim.measure.gpu import Gpus
from commsim.measure.libnccl import DATATYPES, REDUCTIONS, SIGNATURES, Nccl, NcclError, config_for
from commsim.measure.pattern import TORCH_TYPES
from commsim.measure.splits import colors


def _rehearsed(tmp_path: object, monkeypatch: pytest.MonkeyPatch, version: int) -> Nccl:
    monkeypatch.setenv(VARIABLE, environment(Settings(str(tmp_path), version=version))[VARIABLE])
    settings.cache_clear()
    return Nccl(Rehearsal().nccl())


def test_arguments_are_those_of_the_header() -> None:
    """The rehearsal's table was written from nccl.h for itself: both must have as many bytes in the same order."""
    assert SIGNATURES.keys() == _ARGUMENTS.keys()
    for name, arguments in SIGNATURES.items():
        sizes = [ctypes.sizeof(one) for one in arguments]
        assert sizes == [ctypes.sizeof(one) for one in _ARGUMENTS[name][0]], name


def test_enumerations_are_those_of_the_header() -> None:
    # ncclDataType_t and ncclRedOp_t in src/nccl.h.in, 2.28.9
    assert [DATATYPES[name] for name in ("int8", "int64", "float16", "bfloat16", "float8_e4m3")] == [0, 4, 6, 9, 10]
    assert REDUCTIONS == {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
    assert DATATYPES.keys() == TORCH_TYPES.keys() == ITEM_BYTES.keys()


@pytest.mark.parametrize(
    ("version", "size", "said"),
    [((2, 28, 9), 80, 22800), ((2, 30, 7), 80, 22800), ((2, 27, 7), 48, 21700), ((2, 18, 5), 48, 21700)],
)
def test_the_configuration_lies_in_memory_as_the_header_has_it(version: tuple[int, ...], size: int, said: int) -> None:
    data = bytes(config_for(version))
    undefined = -(2**31)
    # size, magic, version, blocking, cgaClusterSize, minCTAs, maxCTAs, netName (at 32, as a pointer), splitShare
    assert struct.unpack_from("=QIIiiiiQi", data) == (
        size, 0xCAFEBEEF, said, 1, undefined, undefined, undefined, 0, undefined
    )  # fmt: skip
    if size == 80:  # trafficClass, commName, six numbers from collnetEnable on, nvlinkCentricSched the last
        assert struct.unpack_from("=iQiiiiii", data, 44) == (undefined, 0, *[undefined] * 5, 1)


@pytest.mark.parametrize(
    ("version", "lacking"),
    [
        (22809, set()),
        (22703, {"ncclAlltoAll", "ncclGather", "ncclScatter"}),
        (21805, {"ncclAlltoAll", "ncclGather", "ncclScatter", "ncclMemAlloc", "ncclCommWindowRegister"}),
        (21300, {"ncclCommInitRankConfig", "ncclCommSplit", "ncclMemAlloc", "ncclAlltoAll"}),
    ],
)
def test_a_version_has_what_it_has(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, version: int, lacking: set[str]
) -> None:
    nccl = _rehearsed(tmp_path, monkeypatch, version)
    assert nccl.version == (version // 10000, version % 10000 // 100, version % 100)
    assert not any(nccl.has(name) for name in lacking)
    assert nccl.join(nccl.unique_id(), 0, 1)
    for name in lacking:
        with pytest.raises(MeasurementError, match=rf"NCCL 2\.\d+\.\d+ has no {name}"):
            nccl.function(name)


def test_an_error_says_what_nccl_said(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = _rehearsed(tmp_path, monkeypatch, 22809)
    with pytest.raises(NcclError, match="ncclMemAlloc: unhandled cuda error: Cuda failure 2 'out of memory'") as caught:
        nccl.allocate(1 << 50)
    assert Gpus().is_out_of_memory(caught.value)
    communicator = nccl.join(nccl.unique_id(), 0, 1)
    pointer, stream = nccl.allocate(4096), 0
    with pytest.raises(NcclError, match="ncclAllReduce: invalid argument"):
        nccl.call("ncclAllReduce", pointer, pointer, 1, 99, 0, communicator, stream)
    with pytest.raises(NcclError, match="are no memory of the GPU"):
        nccl.call("ncclAllReduce", pointer, pointer, 4096, 7, 0, communicator, stream)
    with pytest.raises(NcclError, match=r"Invalid rank requested : 3/2"):
        nccl.join(nccl.unique_id(), 3, 2)


def test_the_libnccl_of_this_machine_is_understood() -> None:
    try:
        nccl = Nccl(Gpus().nccl())
    except MeasurementError as error:
        pytest.skip(f"no libnccl here: {error}"[:120])
    assert nccl.version >= (2, 7, 0)
    assert str(nccl.error("ncclSend", 4)).startswith("ncclSend: invalid argument")
    assert len(nccl.unique_id()) == 128


@pytest.mark.parametrize(
    ("rule", "each"),
    [("div 4", [0] * 4 + [1] * 4), ("MOD 2", [0, 1] * 4), ("& 0x4", [0] * 4 + [4] * 4), ("or 0x7", [7] * 8)],
)
def test_ranks_are_split_as_nccl_tests_does(rule: str, each: list[int]) -> None:
    assert colors(rule, 8) == each


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("half", "expected a rule such as"),
        ("mod 0", "above 0"),
        ("div 3", "parts of 2, 3 of 8 ranks"),
        ("mod x", "rule"),
    ],
)
def test_a_split_that_is_none_is_refused(rule: str, said: str) -> None:
    with pytest.raises(MeasurementError, match=said):
        colors(rule, 8)
