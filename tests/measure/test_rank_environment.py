"""What reaches the environment of a rank before NCCL, gloo and torch read it."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from typing import Any

import pytest

from commsim.errors import MeasurementError
from commsim.measure import rank_environment as module
from commsim.measure.launcher import Host, launch
from commsim.measure.rank_environment import (
    gloo_interface,
    interface_of,
    library_environment,
    own_address,
    watchdog_environment,
)
from commsim.measure.run import Run
from commsim.measure.tasks import Task

RUN = Run("a run", (Task("all_reduce", (64,)),), "nccl", 1, env={"NCCL_ALGO": "Ring"}, timeout_s=600.0)


def test_library_env_reaches_the_process_of_a_rank() -> None:
    lines: list[str] = []
    launch(RUN, lines.append, hosts=[Host(("sh", "-c", "echo $NCCL_ALGO $TORCH_CPP_LOG_LEVEL"))])
    assert lines == ["Ring ERROR"]


def test_a_contradiction_is_refused() -> None:
    assert library_environment(RUN, {"NCCL_ALGO": "Ring"}) == {"NCCL_ALGO": "Ring"}
    with pytest.raises(MeasurementError, match=r"found NCCL_ALGO=Tree in the environment, expected Ring, which libr"):
        library_environment(RUN, {"NCCL_ALGO": "Tree"})


def test_the_watchdog_speaks_before_the_heartbeat() -> None:
    """ProcessGroupNCCL's monitor kills after TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC, and names no call."""
    assert int(watchdog_environment(RUN, {})["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"]) > RUN.timeout_s
    assert watchdog_environment(RUN, {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "5", "TORCH_CPP_LOG_LEVEL": "INFO"}) == {}
    assert watchdog_environment(replace(RUN, backend="gloo"), {}) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_interfaces_by_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") == ""
    assert own_address("127.0.0.1") == ""


def seats(*hosts: str) -> list[dict[str, Any]]:
    return [{"host": host, "address": f"10.0.0.{i}"} for i, host in enumerate(hosts)]


@pytest.fixture
def debian(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose own name means 127.0.1.1, with 10.0.0.0/24 on eth1."""
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "127.0.1.1")
    monkeypatch.setattr(module, "interface_of", lambda address: "eth1" if address.startswith("10.") else "")
    monkeypatch.setattr(module, "own_address", lambda toward: "10.0.0.9" if toward else "")


@pytest.mark.usefixtures("debian")
def test_a_host_at_127_0_1_1_takes_the_interface_that_leads_to_the_others() -> None:
    assert gloo_interface(seats("a", "b"), 1, {}) == {"GLOO_SOCKET_IFNAME": "eth1"}
    first = seats("a", "b")
    first[0]["address"] = ""  # rank 0's MASTER_ADDR is its own name: the other host's address leads out
    assert gloo_interface(first, 0, {}) == {"GLOO_SOCKET_IFNAME": "eth1"}


@pytest.mark.usefixtures("debian")
def test_nothing_is_chosen_on_one_host_or_where_it_is_set() -> None:
    assert gloo_interface(seats("a", "a"), 0, {}) == {}
    assert gloo_interface(seats("a", "b"), 0, {"GLOO_SOCKET_IFNAME": "ib0"}) == {}


@pytest.mark.usefixtures("debian")
def test_no_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "interface_of", lambda _: "")
    with pytest.raises(MeasurementError, match="set GLOO_SOCKET_IFNAME"):
        gloo_interface(seats("a", "b"), 0, {})


def test_a_name_that_means_an_address_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "10.0.0.1")
    assert gloo_interface(seats("a", "b"), 0, {}) == {}
