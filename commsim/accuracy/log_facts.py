"""What a measured log says of the machine and the job that it ran on, as a scenario would say it.

What follows from the log by a rule, and is not printed there, is told apart: each such fact comes with its sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from commsim.errors import LogFormatError
from commsim.measure.records import Curve
from commsim.nccl.environment import MODELLED_ENV
from commsim.nccl.version import Version, parse_version
from commsim.scenario.nccl_env import value_faults

LAUNCHES = ("one_process", "process_per_gpu", "thread_per_gpu")
_REGISTRATION = {"1": "buffer", "2": "window"}
_SET = re.compile(r"([A-Z][A-Z0-9_]*)=(\S*)")
_RELEASE = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True)
class LogFacts:
    """Facts of one curve; None or blank where its log does not say. `derived`: sentences on what was concluded."""

    gpu: str
    ranks: int | None
    nodes: int | None
    ranks_per_node: int | None
    host: str  # the name of the first
    network: str
    nics: int | None  # of one host, as NCCL lists them
    nic_gbps: float | None
    instance: str  # of a cloud, as a network plugin names it
    net_plugin: str  # as NCCL calls what moves its data between nodes
    version: Version | None
    launch: str
    registered: str
    env: Mapping[str, str]
    shared_gpus: str
    mixed_gpus: str
    derived: tuple[str, ...] = ()

    @property
    def one_node(self) -> bool:
        """Whether the log says that its ranks are on one host."""
        return self.nodes == 1


def on_nodes(facts: LogFacts, nodes: int | None) -> LogFacts:
    """The facts with the nodes that a person states; LogFormatError where the log names others.

    Of a log that does not say how many ranks it had, the machine must: `ranks_per_node` stays None.
    """
    if nodes is None:
        return facts
    if facts.nodes is not None and facts.nodes != nodes:
        raise LogFormatError(f"found {nodes} nodes (-n), but the log is of {facts.nodes}")
    if facts.ranks is not None and facts.ranks % nodes:
        raise LogFormatError(f"found {nodes} nodes (-n), over which the {facts.ranks} ranks of the log are not even")
    each = facts.ranks_per_node if facts.ranks is None else facts.ranks // nodes
    return replace(facts, nodes=nodes, ranks_per_node=each)


def facts_of(curve: Curve) -> LogFacts:
    """What the conditions of a curve say, with what follows from them."""
    said = curve.conditions
    ranks, derived = curve.n_ranks, list[str]()
    nodes, each = _number(said, "n_nodes"), _number(said, "ranks_per_node")
    if nodes is not None and ranks is not None and _number(said, "comm_ranks") not in (None, ranks):
        nodes = None  # a communicator of another size than the test's
    if each is None and nodes is None and ranks is not None and (last := _number(said, "last_device")) is not None:
        each = last + 1
        derived.append(f"{each} GPUs a host: the last rank is of device {last}")
    if each is None and ranks is not None and nodes is not None and ranks % nodes == 0:
        each = ranks // nodes
    if nodes is None and each is not None and ranks is not None and ranks % each == 0:
        nodes = ranks // each
    launch = said.get("launch", "")
    return LogFacts(
        gpu=said.get("gpu_model", ""),
        ranks=ranks,
        nodes=nodes,
        ranks_per_node=each,
        host=said.get("host", ""),
        network=said.get("network", ""),
        nics=_number(said, "nics"),
        nic_gbps=float(said["nic_gbps"]) if "nic_gbps" in said else None,
        instance=said.get("instance", ""),
        net_plugin=said.get("net_plugin", ""),
        version=_version(said.get("nccl_version", "")),
        launch="one_process" if launch == "process_per_node" else launch,
        registered=_REGISTRATION.get(said.get("register", ""), "none"),
        env=_env(said.get("env", "")),
        shared_gpus=said.get("shared_gpus", ""),
        mixed_gpus=said.get("gpu_models", ""),
        derived=tuple(derived),
    )


def _env(text: str) -> dict[str, str]:
    """NCCL's variables in a line of them, of those that have an effect on a prediction and values that it knows."""
    env = {name: value for name, value in _SET.findall(text) if name in MODELLED_ENV and value}
    return {name: value for name, value in env.items() if name not in value_faults(env)}


def _version(text: str) -> Version | None:
    match = _RELEASE.match(text)
    return parse_version(match[0]) if match else None


def _number(said: Mapping[str, str], name: str) -> int | None:
    text = said.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 8 else None
