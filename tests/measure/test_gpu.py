"""The layer under everything that touches a GPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from commsim.errors import MeasurementError
from commsim.measure import gpu


@pytest.fixture(autouse=True)
def _anew() -> None:
    gpu.gpus.cache_clear()


def test_another_layer_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpu.LAYER_VARIABLE, "commsim.measure.gpu:Gpus")
    assert type(gpu.gpus()) is gpu.Gpus
    gpu.gpus.cache_clear()


@pytest.mark.parametrize("named", ["nowhere.to.be:seen", "commsim.measure.gpu:Missing", "json:loads", "json", ":"])
def test_a_layer_that_is_none_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv(gpu.LAYER_VARIABLE, named)
    with pytest.raises(MeasurementError, match=r"expected (module:class|a class derived)"):
        gpu.gpus()


def test_a_machine_without_libnccl_has_no_version_and_says_which_names_were_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(gpu.NCCL_VARIABLE, str(tmp_path / "libnccl.so.2"))
    gpu.Gpus.nccl.cache_clear()
    try:
        with pytest.raises(MeasurementError, match=r"libnccl\.so\.2"):
            gpu.Gpus().nccl()
        assert gpu.Gpus().nccl_version() is None
    finally:
        gpu.Gpus.nccl.cache_clear()


def test_the_version_is_the_one_that_the_library_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(pointer: ctypes._Pointer[ctypes.c_int]) -> int:
        pointer.contents.value = 22809
        return 0

    entry = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))(version)

    class Library:
        ncclGetVersion = staticmethod(entry)  # noqa: N815

    monkeypatch.setattr(gpu.Gpus, "nccl", lambda self: Library)
    assert gpu.Gpus().nccl_version() == (2, 28, 9)


def test_nothing_else_asks_cuda_nvml_or_sysfs() -> None:
    for path in sorted(Path(gpu.__file__).parent.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        said = [word for word in ("torch.cuda.", "import pynvml", "/sys/class") if word in text]
        assert path.name == "gpu.py" or not said, f"{path.name}: {said}"
