"""What is said of a machine: all that moves a measurement, and nothing that names a host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_gpus import FakeGpus, FakeNvml, adapter

from commsim.measure.conditions import environment, nccl_configuration, run_conditions
from commsim.measure.gpu_conditions import acs, gpu_conditions, gpu_state, hcas, loaded_plugins, slowed


def test_every_variable_of_the_libraries_is_kept() -> None:
    said = {
        "NCCL_ALGO": "Ring",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "UCX_TLS": "rc,cuda",
        "FI_PROVIDER": "efa",
        "OFI_NCCL_PROTOCOL": "RDMA",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    assert environment(said | {"HOME": "/home/me", "USER": "me"}) == said


def test_nothing_names_a_host_or_a_folder() -> None:
    names = ("NCCL_HOSTID", "NCCL_COMM_ID", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE")
    assert environment(dict.fromkeys(names, "node17")) == {}
    assert environment({"NCCL_NET_PLUGIN": "/opt/me/libnccl-net.so"}) == {"NCCL_NET_PLUGIN": "libnccl-net.so"}


def test_nccl_s_own_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "nccl.conf").write_text(
        "# of this cluster\nNCCL_ALGO=Tree\nNCCL_IB_HCA=mlx5_0\nNCCL_COMM_ID=node17:1\n"
    )
    said = nccl_configuration({"NCCL_CONF_FILE": str(tmp_path / "nccl.conf")})
    assert (said["NCCL_ALGO"], said["NCCL_IB_HCA"]) == ("Tree", "mlx5_0")
    assert "NCCL_COMM_ID" not in said


def test_ranks_that_differ_are_listed() -> None:
    ranks: list[dict[str, Any]] = [
        {"host": "a", "gpu": "H100", "env": {"CUDA_VISIBLE_DEVICES": str(i), "NCCL_ALGO": "Ring"}} for i in range(2)
    ]
    said = run_conditions(ranks)
    assert said["env"] == {"CUDA_VISIBLE_DEVICES": ["0", "1"], "NCCL_ALGO": "Ring"}
    assert (said["gpu"], said["hosts"], said["ranks_per_host"]) == ("H100", 1, 2)


NVML = FakeNvml(
    {},
    nvmlSystemGetDriverVersion=lambda: "570.86.15",
    nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
    nvmlDeviceGetMaxClockInfo=lambda handle, kind: {1: 1980, 2: 2619}[kind],
    nvmlDeviceGetClockInfo=lambda handle, kind: {1: 1410, 2: 2619}[kind],
    nvmlDeviceGetEccMode=lambda handle: [1, 1],
    nvmlDeviceGetMigMode=lambda handle: [0, 0],
    nvmlDeviceGetPersistenceMode=lambda handle: 1,
    nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 0x40 | 0x1,
)


def test_a_gpu_says_how_it_is_set() -> None:
    said = gpu_conditions(FakeGpus(1, NVML), 0)
    assert (said["driver"], said["power_cap_w"], said["sm_clock_most_mhz"]) == ("570.86.15", 700.0, 1980)
    assert (said["ecc"], said["mig"], said["nccl"]) == (True, False, "2.27.7")
    assert "numa_node" not in said  # this NVML does not tell


def test_what_slows_a_gpu_down_is_named() -> None:
    state = gpu_state(FakeGpus(1, NVML), 0)
    assert state["clocks_because_of"] == ["hardware thermal slowdown", "idle"]
    assert slowed(state) == ["hardware thermal slowdown"]
    assert slowed({"clocks_because_of": ["idle", "application clocks"]}) == []


def test_an_older_driver_names_its_reasons_otherwise() -> None:
    old = FakeNvml({}, nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x4)
    assert slowed(gpu_state(FakeGpus(1, old), 0)) == ["power cap"]


def test_without_nvml_the_rest_is_said() -> None:
    said = gpu_conditions(FakeGpus(1), 0)
    assert (said["nvml"], said["sm"]) == ("not there", 90)
    assert gpu_state(FakeGpus(1), 0) == {}


def test_adapters_with_their_ports(tmp_path: Path) -> None:
    adapter(tmp_path, "mlx5_0", 0, 0)
    (said,) = hcas(tmp_path)
    assert said["name"] == "mlx5_0"
    assert said["ports"] == [{"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link": "InfiniBand", "port": "1"}]
    assert json.dumps(said)


def bridge(sysfs: Path, name: str, control: int) -> None:
    """A PCI bridge with extended capabilities: error reporting (0x0001), then ACS (0x000d) at 0x148."""
    device = sysfs / "bus/pci/devices" / name
    device.mkdir(parents=True)
    (device / "class").write_text("0x060400\n")
    data = bytearray(4096)
    data[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
    data[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
    data[0x14E:0x150] = control.to_bytes(2, "little")
    (device / "config").write_bytes(data)


@pytest.mark.parametrize(("control", "said"), [(0x1D, "1 of 2"), (0x08, "1 of 2"), (0x01, "0 of 2")])
def test_access_control_on_bridges(tmp_path: Path, control: int, said: str) -> None:
    """SrcValid 1, P2P request redirect 4, completion redirect 8 (PCI Express Base, 7.7.8)."""
    bridge(tmp_path, "0000:00:01.0", control)
    bridge(tmp_path, "0000:00:02.0", 0)
    assert acs(tmp_path) == f"{said} bridges redirect"


def test_access_control_that_only_root_may_read(tmp_path: Path) -> None:
    bridge(tmp_path, "0000:00:01.0", 0)
    (tmp_path / "bus/pci/devices/0000:00:01.0/config").write_bytes(bytes(64))
    assert acs(tmp_path) == "not readable"


def test_plugins_are_those_that_are_loaded() -> None:
    assert isinstance(loaded_plugins(), list)
