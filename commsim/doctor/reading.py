"""The cluster and its observations from files: a doctor's YAML, CSV tables, nccl-tests logs."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from commsim.collectives.semantics import busbw_factor
from commsim.doctor.cluster import HostCluster, checked_hosts
from commsim.doctor.cluster_file import ALL, DoctorFile, MeasurementSpec
from commsim.doctor.forward import ranks_together
from commsim.doctor.group_test import GroupTest
from commsim.doctor.posterior import Observation
from commsim.document import parse_documents, raise_faults, read_text, validate
from commsim.errors import CommsimError, Fault, LogFormatError
from commsim.files import text_within

LOG_LIMIT = 64 << 20
MOST_RESULTS = 1000
_LEAST_BYTES = 1 << 20
GPUS = 8
"""Of a host, where nothing says it."""
_KEYS = ("hosts", "host", "scope", "gpus", "gpu", "collective", "size_bytes", "time_us", "busbw_GBps")


@dataclass
class DoctorInput:
    """What files say: the cluster as far as one does, and results, each with its file and line."""

    cluster: DoctorFile = field(default_factory=DoctorFile)
    results: list[tuple[str, int, MeasurementSpec]] = field(default_factory=list)
    gpus: int = 0  # of a host, as the logs show


def read_findings(paths: Sequence[Path]) -> DoctorInput:
    """All files together; LogFormatError or ScenarioError with every fault of the first file that has one."""
    findings = DoctorInput()
    described: Path | None = None
    for path in paths:
        if path.suffix.lower() in (".yaml", ".yml"):
            document = parse_documents(read_text(path), str(path))[0]
            read = validate(DoctorFile, document)
            if read.hosts is not None or read.leaves is not None:
                if described is not None:
                    raise CommsimError(f"{path}: found a second cluster, {described} describes one already")
                described = path
            if described == path or findings.cluster == DoctorFile():
                findings.cluster = read
            findings.results += [(str(path), 0, spec) for spec in read.measurements]
        elif path.suffix.lower() == ".csv":
            findings.results += list(_csv_results(path))
            findings.gpus = max([findings.gpus, *(gpu + 1 for *_, spec in findings.results for gpu in spec.gpus or ())])
        else:
            _add_log(path, _log_text(path), findings)
    return findings


def cluster_of(findings: DoctorInput) -> HostCluster:
    """The cluster of what was found; CommsimError for hosts that do not fit together."""
    spec = findings.cluster
    names: Iterable[str] = spec.hosts or [name for leaf in spec.leaves or [] for name in leaf]
    if not names:
        names = dict.fromkeys(name for *_, each in findings.results if each.hosts != ALL for name in each.hosts)
    hosts = checked_hosts(list(names))
    gpus = spec.gpus or findings.gpus or GPUS
    leaf = np.zeros(len(hosts), np.int64)
    if spec.nodes_per_leaf:
        leaf = np.arange(len(hosts)) // spec.nodes_per_leaf
    if spec.leaves:
        under = {name: i for i, each in enumerate(spec.leaves) for name in each}
        if missing := [name for name in hosts if name not in under]:
            raise CommsimError(f"leaves: found {missing[0]!r} under none, expected every host under one")
        if extra := [name for name in under if name not in set(hosts)]:
            raise CommsimError(f"leaves: found {extra[0]!r}, which is none of the hosts")
        leaf = np.unique([under[name] for name in hosts], return_inverse=True)[1]
    nics = spec.nics or gpus
    return HostCluster(hosts, gpus, nics, leaf, rails=spec.rails and nics > 1)


def assumed(findings: DoctorInput, cluster: HostCluster) -> list[str]:
    """What of the cluster no file and no option says, in words."""
    spec, words = findings.cluster, []
    if not spec.gpus and not findings.gpus:
        words.append(f"{cluster.gpus} GPUs a host (--gpus)")
    if not spec.nics:
        words.append(f"{cluster.nics} network card{'s' * (cluster.nics > 1)} a host (--nics)")
    return words


def observations_of(findings: DoctorInput, cluster: HostCluster) -> list[Observation]:
    """The results as observations on the cluster; LogFormatError with each one whose hosts or GPUs it has not."""
    if len(findings.results) > MOST_RESULTS:
        raise CommsimError(f"found {len(findings.results):,} results, expected at most {MOST_RESULTS:,}")
    faults: list[Fault] = []
    out: list[Observation] = []
    for n, (file, line, spec) in enumerate(findings.results):
        where = f"measurements.{n}" if not line else "hosts"
        names = cluster.hosts if spec.hosts == ALL else spec.hosts
        unknown = [name for name in names if name not in cluster.index]
        wide = [gpu for gpu in spec.gpus or () if gpu >= cluster.gpus]
        if unknown:
            faults.append(Fault(file, line, int(line > 0), where, f"found {unknown[0]!r}, which is none of the hosts"))
        if wide:
            text = f"found GPU {wide[0]}, expected one of 0..{cluster.gpus - 1}"
            faults.append(Fault(file, line, int(line > 0), where, text))
        if unknown or wide:
            continue
        hosts = tuple(cluster.index[name] for name in names)
        gpus = spec.gpus or tuple(range(cluster.gpus))
        scope = spec.scope or ("inside" if len(hosts) == 1 else "all")
        test = GroupTest(scope, hosts, gpus, spec.size, spec.collective, spec.shift)
        ranks = ranks_together(test.shape)
        factor = busbw_factor(spec.collective, ranks) if ranks > 1 else 1.0
        seconds = spec.time if spec.busbw is None else spec.size * factor / spec.busbw
        assert seconds is not None  # one of the two is stated
        out.append(Observation(test, seconds))
    if faults:
        raise_faults(faults[:24], LogFormatError)
    return out


def _log_text(path: Path) -> str:
    """The text of a log, whatever else was written into it; LogFormatError for what is no file, or too long a one."""
    try:
        if not path.is_file():
            raise_faults(
                [Fault(str(path), 0, 0, "", "found no file, expected a log, .csv or .yaml")],
                LogFormatError,
            )
        text = text_within(path, LOG_LIMIT)
    except OSError as fault:
        raise_faults([Fault(str(path), 0, 0, "", f"cannot be read: {fault.strerror}")], LogFormatError)
    if text is None:
        raise_faults(
            [Fault(str(path), 0, 0, "", "found more than 64 MiB, expected a log of some runs")], LogFormatError
        )
    return text


def _add_log(path: Path, text: str, findings: DoctorInput) -> None:
    """Every run of an nccl-tests log: the largest size, of the hosts that its rank lines name."""
    from commsim.measure.rank_lines import run_sections

    before = len(findings.results)
    for section in run_sections(text):
        spec = _spec_of(path, section.line, section.ranks, section.mark)
        rows = largest(path, "\n".join(section.lines) + "\n")
        if spec is None or rows is None:
            continue
        collective, nbytes, seconds = rows
        collective = spec.collective if section.mark else collective
        if collective is None:
            message = "found a table whose collective nothing says, expected its command or 'Collective test starting'"
            raise_faults([Fault(str(path), section.line, 1, "", message)], LogFormatError)
        if nbytes < _LEAST_BYTES:
            message = f"found {nbytes} bytes as the largest size, expected 1 MiB at least: a slow part does not show"
            raise_faults([Fault(str(path), section.line, 1, "", message)], LogFormatError)
        changes = {"collective": collective, "size": nbytes, "time": seconds}
        findings.results.append((str(path), section.line, spec.model_copy(update=changes)))
        if not section.mark:
            per_host = Counter(host for _, host, _ in section.ranks.values())
            findings.gpus = max(findings.gpus, *per_host.values())
    if len(findings.results) == before:
        what = "found no run with its rows and its hosts (lines 'Rank 0 ... on HOST device 0')"
        if "\0" in text or not text.strip():
            what = f"found {'binary data' if text.strip() else 'an empty file'}"
        message = f"{what}, expected the log of a run of nccl-tests"
        raise_faults([Fault(str(path), 0, 0, "", message)], LogFormatError)


def largest(path: Path, text: str) -> tuple[str | None, int, float] | None:
    """Collective, bytes and seconds of the largest size of a run; None where it has no row.

    The collective is None where neither the run nor its rows say it.
    """
    from commsim.measure.nccl_log import read_log
    from commsim.measure.rows import deduce_collective

    try:
        tables = read_log(io.StringIO(text), path)
    except CommsimError:
        return None
    table = tables[-1]
    rows = [row for row in table.rows if row.size > 0]
    if not rows:
        return None
    top = max(rows, key=lambda row: row.size)
    times = [group.time_us for group in (top.out_of_place, top.in_place) if group.time_us > 0]
    if not times:
        return None
    collective = table.collective or deduce_collective(table, rows, table.n_ranks, path.name)[0]
    return collective, top.size, times[0] * 1e-6


def _spec_of(path: Path, line: int, ranks: dict[int, tuple[int, str, int]], mark: str) -> MeasurementSpec | None:
    """Hosts, GPUs and scope of a run: as a script of ours says before it, else as its rank lines do."""
    if mark:
        try:
            return MeasurementSpec.model_validate(json.loads(mark) | {"time": "1 s"})
        except (ValidationError, ValueError, TypeError):
            message = "found a line '# commsim doctor:' that is not as our scripts write it"
            raise_faults([Fault(str(path), line, 1, "", message)], LogFormatError)
    if not ranks:
        return None
    places = [ranks[rank] for rank in sorted(ranks)]
    hosts = tuple(dict.fromkeys(host for _, host, _ in places))
    groups: dict[int, list[str]] = {}
    for group, host, _ in places:
        groups.setdefault(group, []).append(host)
    scope = "all"
    if all(len(set(each)) == 1 for each in groups.values()):
        scope = "inside"
    elif len(groups) > 1 and all(len(set(each)) == len(each) for each in groups.values()):
        scope = "across"
    devices = tuple(sorted({device for *_, device in places}))
    words = {"hosts": list(hosts), "scope": scope, "gpus": list(devices), "time": "1 s"}
    try:
        return MeasurementSpec.model_validate(words)
    except ValidationError as error:
        raise_faults([Fault(str(path), line, 1, "", _reason(error))], LogFormatError)


def _csv_results(path: Path) -> Iterable[tuple[str, int, MeasurementSpec]]:
    """Rows with hosts (blanks between), and a time or a bus bandwidth; `host` and `gpu` for figures of one rank."""
    from commsim.measure.csv_tables import csv_records

    faults = []
    rows = list(csv_records(io.StringIO(read_text(path, error=LogFormatError, limit=LOG_LIMIT)), path))
    header = rows[0].header if rows else []
    if not ({"hosts", "host"} & set(header) and {"time_us", "busbw_GBps"} & set(header)):
        message = f"found the columns {', '.join(header[:12]) or 'none'}, expected some of {', '.join(_KEYS)}"
        raise_faults([Fault(str(path), 1, 1, "", message)], LogFormatError)
    for row in rows:
        words: dict[str, object] = {name: value for name in ("scope", "collective") if (value := row.get(name))}
        names = row.get("hosts") or row.get("host")
        try:
            words["hosts"] = ",".join(names.split())
            if gpus := row.get("gpus") or row.get("gpu"):
                words["gpus"] = [int(gpu) for gpu in gpus.split()]
            for key, name, unit in (
                ("size", "size_bytes", "B"),
                ("time", "time_us", "us"),
                ("busbw", "busbw_GBps", "GB/s"),
            ):
                if value := row.get(name):
                    words[key] = f"{value} {unit}"
            yield str(path), row.line, MeasurementSpec.model_validate(words)
        except (CommsimError, ValueError) as error:
            faults.append(Fault(str(path), row.line, 1, "", _reason(error)))
            if len(faults) == 24:
                break
    if faults:
        raise_faults(faults, LogFormatError)


def _reason(error: Exception) -> str:
    """Why a result was refused."""
    if isinstance(error, ValidationError):
        return error.errors()[0]["msg"].removeprefix("Value error, ")
    return str(error)


def written(observed: Sequence[Observation], cluster: HostCluster, machine: str | None) -> str:
    """A doctor's file of the cluster and its observations, which `read_findings` reads back."""
    import yaml

    runs = []
    for each in observed:
        test = each.test
        result: dict[str, object] = {"hosts": [cluster.hosts[host] for host in test.hosts], "scope": test.scope}
        if test.gpus != tuple(range(cluster.gpus)):
            result["gpus"] = list(test.gpus)
        if test.shift:
            result["shift"] = test.shift
        runs.append(result | {"collective": test.collective, "size": f"{test.nbytes} B", "time": f"{each.seconds!r} s"})
    whole: dict[str, object] = {"hosts": list(cluster.hosts), "gpus": cluster.gpus, "nics": cluster.nics}
    if cluster.leaves > 1:
        whole["leaves"] = [
            [name for i, name in enumerate(cluster.hosts) if cluster.leaf[i] == leaf] for leaf in range(cluster.leaves)
        ]
        whole["rails"] = cluster.rails
    if machine is not None:
        whole["machine"] = machine
    return yaml.safe_dump(whole | {"measurements": runs}, sort_keys=False, default_flow_style=None, width=100)
