"""What NCCL itself says of its topology, graphs, tuning and choices: an untimed pass in processes of its own.

NCCL reads NCCL_DEBUG once per process, and a log costs time. The pass writes ``capture/`` of the run's folder:
``topology.xml``, ``graphs.xml`` (for `library.graph` of a scenario) and ``nccl-debug.log``, which names the host.
Beside it ``nccl_choices.json`` holds the tuning table and the choices, and names no host.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from commsim.errors import CommsimError, MeasurementError
from commsim.files import write_atomically

FOLDER, CHOICES = "capture", "nccl_choices.json"
DEBUG_LOG, TOPOLOGY, GRAPHS = "nccl-debug.log", "topology.xml", "graphs.xml"
_UNFINISHED = "capture.new"
_CHOICE = ("collective", "nbytes", "algorithm", "protocol", "channels")


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty where there is none or it cannot be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def is_captured(folder: Path, fingerprint: str) -> bool:
    """Whether the choices of this run are there already."""
    choices = read_object(folder / CHOICES)
    return choices.get("fingerprint") == fingerprint and bool(choices.get("choices"))


def begin(folder: Path) -> None:
    """Makes the folder that NCCL shall write into; it is there before NCCL begins, which makes none."""
    unfinished = folder / _UNFINISHED
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    except OSError as fault:
        raise MeasurementError(f"{unfinished}: cannot be written: {fault.strerror}") from None


def capture_environment(folder: Path, rank: int, *, graphs: bool = True) -> dict[str, str]:
    """The variables for the rank's process before NCCL begins.

    Every rank asks for the topology, though only rank 0 writes it: the ranks of a host gather it in an exchange that
    waits for all (ncclTopoGetSystem in src/graph/topo.cc, 2.27.7). Without `graphs` they are in the log alone: NCCL up
    to 2.30 fails as it writes paths of C2C (kvDictLinkType in src/graph/search.cc).
    """
    unfinished = (folder / _UNFINISHED).absolute()
    variables = {"NCCL_TOPO_DUMP_FILE": str(unfinished / TOPOLOGY), "NCCL_TOPO_DUMP_FILE_RANK": "0"}
    if rank == 0:
        variables |= {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,TUNING,ENV",
            "NCCL_DEBUG_FILE": str(unfinished / DEBUG_LOG).replace("%", "%%"),
        }
    if rank == 0 and graphs:
        variables |= {"NCCL_GRAPH_DUMP_FILE": str(unfinished / GRAPHS), "NCCL_GRAPH_DUMP_FILE_RANK": "0"}
    return variables


def finish(folder: Path, fingerprint: str) -> Path:
    """Puts what NCCL wrote in its place, and its tuning table and choices into ``nccl_choices.json``; returns that.

    The table is in microseconds and GB/s, as NCCL prints it. Raises LogFormatError where the log says nothing, and
    leaves what an earlier pass captured as it was.
    """
    from commsim.nccl.debug_log import read_debug_log

    unfinished, kept = folder / _UNFINISHED, folder / FOLDER
    log = read_debug_log(unfinished / DEBUG_LOG)
    if not log.selections:
        raise MeasurementError(f"{unfinished / DEBUG_LOG}: NCCL {log.version or ''} logged no choices")
    choices: dict[str, Any] = {
        "fingerprint": fingerprint,
        "version": None if log.version is None else list(log.version),
        "ranks": log.ranks,
        "nodes": log.nodes,
        "coll_channels": log.coll_channels,
        "p2p_channels": log.p2p_channels,
        "graphs": f"{FOLDER}/{GRAPHS if _has_graphs(unfinished / GRAPHS) else DEBUG_LOG}",
        "topology": f"{FOLDER}/{TOPOLOGY}" if (unfinished / TOPOLOGY).is_file() else None,
        "table": [
            {"collective": c, "algorithm": a, "protocol": p, "latency_us": e.latency_us, "algbw_GBps": e.algbw_gbps}
            for (c, a, p), e in log.entries.items()
        ],
        "choices": [
            dict(zip(_CHOICE, values, strict=True))
            for values in dict.fromkeys(tuple(getattr(choice, name) for name in _CHOICE) for choice in log.selections)
        ],
    }
    try:
        shutil.rmtree(kept, ignore_errors=True)
        unfinished.rename(kept)
    except OSError as fault:
        raise MeasurementError(f"{kept}: cannot be written: {fault.strerror}") from None
    return write_atomically(folder / CHOICES, json.dumps(choices, indent=2) + "\n")


def _has_graphs(path: Path) -> bool:
    """Whether a scenario can take the file as `library.graph`."""
    from commsim.nccl.graph_xml import read_graphs

    try:
        return bool(read_graphs(path))
    except (CommsimError, OSError):
        return False
