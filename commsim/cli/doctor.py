"""``commsim doctor``: which node, card, link or leaf switch is slow, and which test to run next."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commsim.cli.options import Json, spread
from commsim.cli.say import aside, print_json, say, tracking, verdict
from commsim.errors import CommsimError
from commsim.files import check_writable, write_atomically

if TYPE_CHECKING:
    from commsim.doctor.cluster import HostCluster
    from commsim.doctor.examination import Diagnosis, Examination, Measure
    from commsim.doctor.group_test import GroupTest
    from commsim.doctor.posterior import Observation
    from commsim.doctor.reading import DoctorInput
    from commsim.topology.graph import Topology


@dataclass(frozen=True)
class ClusterOptions:
    """The cluster, where no file says it."""

    hosts: Annotated[
        str | None, typer.Option(metavar="LIST", help="The hosts, such as 'node[001-128]' (default: as the files say).")
    ] = None
    gpus: Annotated[int | None, typer.Option(min=1, max=64, help="GPUs of a host (default: as files say, or 8).")] = (
        None
    )
    nics: Annotated[int | None, typer.Option(min=1, max=64, help="Network cards of a host (default: as GPUs).")] = None
    nodes_per_leaf: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Hosts under a leaf switch, in the order of the hosts.")
    ] = None
    machine: Annotated[
        str | None,
        typer.Option(metavar="PRESET", help="Predict healthy times of this machine (default: tests among themselves)."),
    ] = None


@dataclass(frozen=True)
class RoundOptions:
    """What runs tests, and when it ends."""

    run: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Run rounds by this command until it is sure; {hosts}, {hostfile}, {ranks}, {per_host}, {gpus}, "
            "{env}, {split}, {program}, {size} are filled in; it prints a table of nccl-tests.",
        ),
    ] = None
    testbed: Annotated[
        str | None,
        typer.Option(
            metavar="SCENARIO", help="Run rounds on the machine of a scenario, built here with gloo ranks. Linux, root."
        ),
    ] = None
    most: Annotated[
        int | None, typer.Option(min=1, help="Tests at most (default: 2 log2 of the hosts, plus 4, for two faults).")
    ] = None
    at_once: Annotated[int, typer.Option(min=1, max=16, help="Tests of a round, on disjoint hosts.")] = 1
    size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Message of a test (default: 1 GiB, or 8 MiB a host if more).")
    ] = None
    timeout: Annotated[float, typer.Option(min=1, help="Seconds after which a command of --run is stopped.")] = 600.0


@spread
def doctor(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Logs of nccl-tests, tables (.csv), clusters and measurements (.yaml), in any order."),
    ] = None,
    cluster_options: ClusterOptions = ClusterOptions(),
    run_options: RoundOptions = RoundOptions(),
    noise: Annotated[
        float, typer.Option(min=0.001, max=1.0, help="Spread of one and the same test (standard deviation of ln t).")
    ] = 0.05,
    sure: Annotated[
        float, typer.Option(min=0.5, max=0.9999, help="Probability of the answer at which it ends.")
    ] = 0.95,
    plan: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the next round as a script, with its files of hosts.")
    ] = None,
    launcher: Annotated[str, typer.Option(help="What the scripts start ranks with: mpirun or slurm.")] = "mpirun",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for suspects.png and .svg, diagnosis.json and measurements.yaml."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write all of it as one HTML file to mail.")] = None,
    fail_above: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Exit 1 where the probability of a suspect, or of a host, is above this."),
    ] = 0.9,
    json_output: Json = False,
) -> None:
    """Say which node, card, link or leaf switch is slow, and which test to run next."""
    if launcher not in ("mpirun", "slurm"):
        raise typer.BadParameter(f"found {launcher!r}, expected mpirun or slurm", param_hint="--launcher")
    if run_options.run is not None and run_options.testbed is not None:
        raise typer.BadParameter("found it beside --run, expected one of them", param_hint="--testbed")
    if out is not None:
        check_writable(out / "diagnosis.json")
    from commsim.doctor.examination import Examination
    from commsim.doctor.forward import forward_of
    from commsim.doctor.posterior import Priors
    from commsim.doctor.reading import assumed, cluster_of, observations_of, read_findings, written
    from commsim.doctor.suspect import suspects_of
    from commsim.units import nccl_bytes

    findings = read_findings(files or [])
    bed = _testbed(run_options, findings, cluster_options)
    _apply(cluster_options, findings)
    cluster = cluster_of(findings)
    if len(cluster.hosts) < 2:
        raise CommsimError(f"found one host, {cluster.hosts[0]}, expected two at least: name them with --hosts")
    machine = findings.cluster.machine
    nbytes = None if run_options.size is None else nccl_bytes(run_options.size)
    if nbytes is not None and nbytes < 1 << 20:
        raise CommsimError(f"--size: found {run_options.size}, expected 1 MiB at least: a slow part does not show")
    if nbytes is None and bed is not None:
        from commsim.doctor.runner import TESTBED_BYTES as nbytes  # noqa: N811
    examination = Examination(
        suspects_of(cluster), forward_of(machine, cluster), Priors(noise=noise), sure=sure, nbytes=nbytes,
        at_once=run_options.at_once,
    )  # fmt: skip
    _observe(examination, observations_of(findings, cluster), json_output)

    def keep(seen: list[Observation]) -> None:
        if out is not None:
            write_atomically(out / "measurements.yaml", written(seen, cluster, machine))

    diagnosis = _run(examination, cluster, run_options, bed, keep, json_output)
    paths = _write(out, diagnosis, cluster, machine) if out is not None else []
    if html is not None:
        from commsim.report.doctor_page import doctor_page
        from commsim.report.page import html as page_text

        paths.append(write_atomically(html, page_text(doctor_page(diagnosis, cluster, assumed(findings, cluster)))))
    scripts = _plan(plan, diagnosis, cluster, launcher) if plan is not None else []
    if json_output:
        from commsim.report.diagnosis import diagnosis_dict

        print_json(diagnosis_dict(diagnosis, cluster) | {"assumed": assumed(findings, cluster)})
    else:
        _say(diagnosis, cluster, launcher, assumed(findings, cluster), [*paths, *scripts])
    parts = [each.probability for each in diagnosis.suspicions]
    odd = not diagnosis.fits or diagnosis.factor is not None
    if diagnosis.observed and (odd or max([*parts, *diagnosis.of_hosts.tolist()]) > fail_above):
        raise typer.Exit(1)


_TOGETHER = 4  # results of files that are taken at once; with many, hypotheses that the first rule out cost time


def _observe(examination: Examination, observed: list[Observation], quiet: bool) -> None:
    """Takes the results of files; a bar shows how far it is."""
    with tracking(quiet) as track:
        starts = range(0, len(observed), _TOGETHER)
        for start in track(starts, "results") if track else starts:
            some = observed[start : start + _TOGETHER]
            examination.add([each.test for each in some], [each.seconds for each in some])


def _apply(options: ClusterOptions, findings: DoctorInput) -> None:
    """Puts the options over what the files say of the cluster."""
    from commsim.doctor.cluster import hostlist

    given = {name: value for name, value in vars(options).items() if value is not None}
    if "hosts" in given:
        given["hosts"] = hostlist(given["hosts"])
    if given.keys() & {"hosts", "nodes_per_leaf"}:
        given.setdefault("leaves", None)
    findings.cluster = findings.cluster.model_copy(update=given)


def _testbed(options: RoundOptions, findings: DoctorInput, cluster: ClusterOptions) -> Topology | None:
    """The machine to build, whose hosts become the cluster; None for none."""
    if options.testbed is None:
        return None
    if findings.results or findings.cluster.hosts or cluster.hosts:
        raise typer.BadParameter("found it with hosts, but a testbed has hosts of its own", param_hint="--testbed")
    from commsim.measure.launcher import require_torch
    from commsim.scenario.load import find_scenario, load_scenarios
    from commsim.scenario.setting import build_topology

    require_torch()
    topology = build_topology(load_scenarios(find_scenario(options.testbed))[0])
    if topology.ranks_per_node != 1:
        raise CommsimError(f"{options.testbed}: found {topology.ranks_per_node} ranks per node, expected one")
    names = tuple(f"node{i}" for i in range(topology.nodes))
    findings.cluster = findings.cluster.model_copy(update={"hosts": names, "gpus": 1, "nics": 1})
    return topology


def _run(
    examination: Examination,
    cluster: HostCluster,
    options: RoundOptions,
    bed: Topology | None,
    keep: Callable[[list[Observation]], None],
    quiet: bool,
) -> Diagnosis:
    """Runs rounds where asked to; each test is said as it ends, and is kept before the next round."""
    if options.run is None and bed is None:
        return examination.diagnosis()
    from math import log2

    from commsim.doctor.examination import examine
    from commsim.doctor.posterior import Observation
    from commsim.doctor.runner import on_testbed, template
    from commsim.report.diagnosis import test_words
    from commsim.report.tables import fitted
    from commsim.units import format_time

    with ExitStack() as stack:
        measure: Measure
        if bed is not None:
            measure = stack.enter_context(on_testbed(bed))
        else:
            measure = template(options.run or "", cluster, options.timeout)

        def told(tests: list[GroupTest]) -> list[float]:
            seconds = measure(tests)
            for test, time in zip(tests, seconds, strict=True):
                for line in fitted([f"# {test_words(test, cluster)}: {format_time(time)}"]):
                    say(line, err=quiet)
            keep([*examination.observed, *map(Observation, tests, seconds)])
            return seconds

        most = options.most or 2 * int(2 * log2(len(cluster.hosts)) + 4)
        return examine(examination, told, most)


def _write(out: Path, diagnosis: Diagnosis, cluster: HostCluster, machine: str | None) -> list[Path]:
    import json

    from commsim.cli.pictures import write_both
    from commsim.doctor.reading import written
    from commsim.report.diagnosis import diagnosis_dict, plot_diagnosis

    document = json.dumps(diagnosis_dict(diagnosis, cluster), indent=2, allow_nan=False) + "\n"
    paths = [write_atomically(out / "diagnosis.json", document)]
    paths.append(write_atomically(out / "measurements.yaml", written(diagnosis.observed, cluster, machine)))
    return [*paths, *write_both(out / "suspects", plot_diagnosis(diagnosis))]


def _plan(folder: Path, diagnosis: Diagnosis, cluster: HostCluster, launcher: str) -> list[Path]:
    """Writes the scripts of the next round, numbered on from those that are there."""
    from commsim.doctor.choice import first_round
    from commsim.doctor.script import round_files

    tests = [choice.test for choice in diagnosis.following] if diagnosis.observed else first_round(cluster)
    if not tests:
        return []
    number = 1 + len(list(folder.glob("round-*.s*"))) if folder.is_dir() else 1
    files = round_files(tests, cluster, launcher, number)  # type: ignore[arg-type]
    return [write_atomically(folder / name, text) for name, text in files.items()]


_HOSTFILE = "a line for each rank, the hosts in this order; --plan FOLDER writes it with the command"


def _say(diagnosis: Diagnosis, cluster: HostCluster, launcher: str, unknown: list[str], written: list[Path]) -> None:
    import shlex

    from commsim.doctor.script import command
    from commsim.report.diagnosis import diagnosis_lines, test_words
    from commsim.report.tables import fitted

    answer, *lines = diagnosis_lines(diagnosis)
    verdict(answer)
    for line in [*fitted([f"# nothing says it, so assumed: {', '.join(unknown)}"] if unknown else []), *lines]:
        say(line)
    for choice in diagnosis.following:
        bits = f" (tells {choice.bits:.2f} bits)" if choice.bits else ""
        say("\n".join(fitted([f"next test{bits}: {test_words(choice.test, cluster)}"])))
        if cluster.gpus > 1:
            made = command(choice.test, cluster, launcher, "HOSTFILE")  # type: ignore[arg-type]
            say(f"  {shlex.join(made.words)}")
    if diagnosis.following and cluster.gpus > 1:
        say("\n".join(fitted([f"  HOSTFILE: {_HOSTFILE}"])))
    for path in written:
        aside(f"# wrote {path}")
