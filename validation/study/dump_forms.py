"""Dumps in NCCL's forms, written by hand from a timeline whose truth is known: who was late, and for how long."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BASE_NS = 1_795_000_000_000_000_000
ELEMENTS = 1 << 20  # float32, 4 MiB
_TORCH = {"all_reduce": "allreduce", "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base"}
_NCCL = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter"}


@dataclass
class Timeline:
    """Starts and ends of every call on every rank, in nanoseconds of one true clock; ``ahead_ns`` moves clocks.

    ``late_s``: (rank, call) and by how much that rank enters it later than it would have.
    """

    n_ranks: int
    operations: Sequence[str]
    late_s: Mapping[tuple[int, int], float] = field(default_factory=dict)
    ahead_ns: Mapping[int, int] = field(default_factory=dict)
    transfer_s: float = 2e-3
    seed: int = 0
    starts: list[list[int]] = field(default_factory=list)
    ends: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        now = [BASE_NS] * self.n_ranks
        for call, _ in enumerate(self.operations):
            compute = [5e-3 * draw.uniform(0.98, 1.02) + self.late_s.get((r, call), 0.0) for r in range(self.n_ranks)]
            entered = [now[r] + round(1e9 * compute[r]) for r in range(self.n_ranks)]
            left = max(entered) + round(1e9 * self.transfer_s * draw.uniform(0.98, 1.02))
            now = [left + round(draw.uniform(0, 5e3)) for _ in range(self.n_ranks)]
            self.starts.append(entered)
            self.ends.append(list(now))

    def waiting_s(self, call: int) -> list[float]:
        """The truth, by rank."""
        return [(max(self.starts[call]) - start) / 1e9 for start in self.starts[call]]


Entry = dict[str, Any]
Change = Callable[[int, list[Entry]], list[Entry]]
"""(rank, its entries) -> the entries of a rank that did something else."""


def flight_entries(job: Timeline, rank: int, *, timing: bool = True) -> list[Entry]:
    """Entries of one rank's flight recorder, all completed."""
    return [
        {
            "frames": [{"name": "step", "filename": "/job/train.py", "line": 40 + call % 3}],
            "record_id": call, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": call + 1,
            "p2p_seq_id": 0, "op_id": call + 1, "profiling_name": f"nccl:{operation}",
            "time_created_ns": job.starts[call][rank] + job.ahead_ns.get(rank, 0),
            **({"duration_ms": (job.ends[call][rank] - job.starts[call][rank]) / 1e6} if timing else {}),
            "input_sizes": [[_elements(job, operation)[0]]], "input_dtypes": ["Float"],
            "output_sizes": [[_elements(job, operation)[1]]],
            "output_dtypes": ["Float"], "state": "completed",
            "time_discovered_started_ns": job.starts[call][rank], "time_discovered_completed_ns": job.ends[call][rank],
            "retired": True, "timeout_ms": 600000, "is_p2p": False,
        }
        for call, operation in enumerate(job.operations)
    ]  # fmt: skip


def _elements(job: Timeline, operation: str) -> tuple[int, int]:
    """Elements in and out of one rank."""
    share = ELEMENTS // job.n_ranks
    return share if operation == "all_gather" else ELEMENTS, share if operation == "reduce_scatter" else ELEMENTS


def unfinished(entry: Entry, state: str = "started") -> Entry:
    """The entry of a call that did not end."""
    without = {key: value for key, value in entry.items() if key != "duration_ms"}
    return without | {"state": state, "retired": False, "time_discovered_completed_ns": None}


def write_flight(folder: Path, job: Timeline, change: Change | None = None, *, form: str = "pickle") -> list[Path]:
    """A file for each rank, as torch names and writes them."""
    paths = []
    for rank in range(job.n_ranks):
        entries = flight_entries(job, rank)
        if change is not None:
            entries = change(rank, entries)
        ranks = str(list(range(job.n_ranks)))
        document = {
            "version": "2.10", "comm_lib_version": "2.27.5", "entries": entries, "pg_status": {},
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        }  # fmt: skip
        path = folder / (f"nccl_trace_rank_{rank}" + (".json" if form == "json" else ""))
        path.write_bytes(json.dumps(document).encode() if form == "json" else pickle.dumps(document, protocol=2))
        paths.append(path)
    return paths


def write_kineto(folder: Path, job: Timeline, *, host_of: Callable[[int], str], packed: bool = True) -> list[Path]:
    """Traces of torch.profiler with NCCL's kernels and what torch knew of them."""
    paths = []
    for rank in range(job.n_ranks):
        ahead = job.ahead_ns.get(rank, 0)
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}}
        ]
        for call, operation in enumerate(job.operations):
            args = {
                "External id": call + 7, "Collective name": _TORCH[operation],
                "In msg nelems": _elements(job, operation)[0],
                "Out msg nelems": _elements(job, operation)[1], "dtype": "Float",
                "Group size": job.n_ranks, "Process Group Name": "0",
                "Process Group Description": "default_pg", "Process Group Ranks": str(list(range(job.n_ranks))),
            }  # fmt: skip
            start, end = job.starts[call][rank] + ahead, job.ends[call][rank] + ahead
            us = (start - BASE_NS) / 1e3
            name = f"ncclDevKernel_{_NCCL[operation]}_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            events += [
                {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 1, "tid": 1, "ts": us - 900,
                 "dur": 20, "args": args},
                {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 20, "ts": us, "dur": (end - start) / 1e3,
                 "args": {"External id": call + 7, "stream": 20, "device": rank % 8}},
            ]  # fmt: skip
        document = {
            "schemaVersion": 1, "host_name": host_of(rank), "baseTimeNanoseconds": BASE_NS,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": job.n_ranks}, "traceEvents": events,
        }  # fmt: skip
        text = json.dumps(document, indent=1).encode()
        path = folder / f"trace_{rank}.pt.trace.json{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(text) if packed else text)
        paths.append(path)
    return paths


def write_inspector(folder: Path, job: Timeline, *, verbose: bool = False) -> list[Path]:
    """Files of NCCL's inspector, which count whole microseconds."""
    paths = []
    for rank in range(job.n_ranks):
        lines = []
        for call, operation in enumerate(job.operations):
            start, end = job.starts[call][rank] // 1000, job.ends[call][rank] // 1000
            perf: dict[str, Any] = {
                "coll": _NCCL[operation], "coll_sn": call + 1, "coll_msg_size_bytes": 4 * ELEMENTS,
                "coll_exec_time_us": end - start, "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": 4 * ELEMENTS / (end - start) / 1e3, "coll_busbw_gbs": 1.0,
            }  # fmt: skip
            if verbose:
                kernel = {"channel_id": 0, "kernel_start_ts": start, "kernel_stop_ts": end, "kernel_record_ts": end}
                perf["event_trace_ts"] = {"coll_start_ts": start, "coll_stop_ts": end, "kernel_events": [kernel]}
            header = {"id": "0x7f8c496ae9f661", "rank": rank, "n_ranks": job.n_ranks, "nnodes": 1}
            metadata = {"inspector_output_format_version": "v4.0", "hostname": "node0", "pid": 100 + rank}
            lines.append(json.dumps({"header": header, "metadata": metadata, "coll_perf": perf}))
        path = folder / f"node0-pid{100 + rank}.log"
        path.write_text("\n".join(lines) + "\n")
        paths.append(path)
    return paths


def write_ras_json(folder: Path, launched: Sequence[int], *, dead: Sequence[int] = ()) -> Path:
    """What ``ncclras -f json`` writes of one communicator."""
    functions = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}

    def place(rank: int) -> dict[str, Any]:
        return {"rank": rank, "host": "10.0.0.1", "pid": 100 + rank, "cuda_dev": rank % 8, "nvml_dev": rank % 8}

    ranks = [
        place(r) | {"status": status, "collective_counts": dict.fromkeys(functions, 0) | {"AllReduce": n}}
        for r, n in enumerate(launched)
        if r not in dead
    ]
    missing = [place(r) | {"status": {"unresponsive": True, "considered_dead": True}} for r in dead]
    communicator = {
        "hash": "0x93d7000200000001", "secondary_hash": "0x1:0x2", "size": len(launched), "ranks_count": len(ranks),
        "missing_ranks_count": len(missing), "ranks": ranks, "missing_ranks": missing,
    }  # fmt: skip
    document = {
        "nccl_version": "2.28.3", "cuda_runtime_version": 12090, "cuda_driver_version": 13000,
        "timestamp": "2026-01-01 00:00:00", "communicators_count": 1, "communicators": [communicator],
        "ras": {"collection_time_sec": 0.003, "timeouts_count": 0},
    }  # fmt: skip
    path = folder / "ras.json"
    path.write_text(json.dumps(document, indent=2))
    return path


RAS_TEXT = """NCCL version 2.26.2 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          8            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         8         8         8   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation {front}
  Rank {rank} has launched up to operation {behind} -- GPU {rank} managed by process 123 on node 10.0.0.1

"""
"""The text of ncclras as rasClientRunComms prints it (src/ras/client_support.cc, NCCL 2.26)."""


def write_nsys(folder: Path, job: Timeline) -> list[Path]:
    """Exports of nsys with its tables of kernels and names."""
    paths = []
    for rank in range(job.n_ranks):
        path = folder / f"profile_rank{rank}.sqlite"
        names = {operation: i + 1 for i, operation in enumerate(dict.fromkeys(job.operations))}
        with closing(sqlite3.connect(path)) as base, base:
            base.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT)")
            base.execute(
                "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT NOT NULL, end INT NOT NULL, deviceId INT NOT NULL, "
                "contextId INT, streamId INT, correlationId INT, globalPid INT, demangledName INT NOT NULL, "
                "shortName INT NOT NULL)"
            )
            kernels = [
                (i, f"ncclDevKernel_{_NCCL[o]}{'' if o == 'all_gather' else '_Sum_f32'}_RING_LL")
                for o, i in names.items()
            ]
            base.executemany("INSERT INTO StringIds VALUES (?, ?)", kernels)
            base.executemany(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, 20, ?, 1, ?, ?)",
                [
                    (job.starts[c][rank] - BASE_NS, job.ends[c][rank] - BASE_NS, rank % 8, c, names[o], names[o])
                    for c, o in enumerate(job.operations)
                ],
            )
        paths.append(path)
    return paths
