"""One rank of a run: meets the others, measures row after row, and says in one line why it stopped.

The launcher of `commsim measure` starts it as ``python -m commsim.measure.torch_runner`` with the run on standard
input; under torchrun or srun the command line calls `run_rank` in the process that is already there.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

import commsim
from commsim.errors import CommsimError, MeasurementError
from commsim.measure.communicator import Communicator
from commsim.measure.conditions import environment, rank_conditions, run_conditions
from commsim.measure.gpu import gpus
from commsim.measure.libnccl import NcclFaultError
from commsim.measure.nccl_loop import NcclLoop
from commsim.measure.nccl_sharing import logging, meaning, sharing, write_choices
from commsim.measure.operations import Operation, operation
from commsim.measure.records import busbw_factor
from commsim.measure.rendezvous import Meeting, Place, place_from
from commsim.measure.run import Point, Run, TrainingTask
from commsim.measure.run_folder import RunFolder
from commsim.measure.schedule_steps import load_schedule, schedule_operation
from commsim.measure.table import format_row
from commsim.measure.timing import Sample, sample
from commsim.measure.traffic import Bytes, tcp_bytes
from commsim.units import format_bytes, gb_per_s, microseconds

FAILED = 1

LEAST_PATIENCE_S = 8.0

_MEASURES = {
    "torch": "torch.distributed's calls: the library's time with the launch from Python and c10d before it; medians "
    "over the calls of the slowest rank",
    "libnccl": "NCCL's calls, many in a row with one synchronisation, as nccl-tests; means over the calls and ranks",
}

_PATIENCE_S = 1.0
"""For which a rank that failed waits for the word of another that failed before it."""


class _NoAnswerError(MeasurementError):
    """A rank waited for another longer than allowed. It closes its connections, which the others take for its loss."""


def run_rank(run: Run, place: Place, spent_s: float = 0.0) -> None:
    """Measures a run as one of its ranks; rank 0 writes the rows and prints them.

    `spent_s`: what starting has taken. It counts as waiting for the other ranks, which start as slowly, so that on a
    busy machine too a rank that never comes is missed in time.

    Raises MeasurementError, on every rank that is still alive, where the run cannot go on.
    """
    if place.world_size != run.world_size:
        raise MeasurementError(f"{place}: the run is for {run.world_size} ranks")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    device = _device(run, place)
    patience_s = max(min(LEAST_PATIENCE_S, run.timeout_s), run.timeout_s - spent_s)
    meeting = Meeting(place, run.fingerprint(), patience_s)
    try:
        _Rank(run, place, device, meeting).measure()
    except CommsimError as error:
        # Who fails because another one failed says what that one said; who waited in vain is the first to know.
        told = meeting.told(0.0 if isinstance(error, _NoAnswerError) else _PATIENCE_S)
        meeting.leave(str(error))
        raise MeasurementError(f"{place}: {told or error}") from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _device(run: Run, place: Place) -> Any:
    if run.backend == "gloo":
        return torch.device("cpu")
    layer = gpus()
    if not layer.available():
        raise MeasurementError(f"{place}: backend nccl needs a CUDA GPU, and torch {torch.__version__} sees none")
    index = place.local_rank // run.ranks_per_gpu
    if index >= layer.count():
        raise MeasurementError(
            f"{place}: local rank {place.local_rank} needs GPU {index}, but this machine has "
            f"{layer.count()}; several ranks can share one with --ranks-per-gpu"
        )
    layer.use(index)
    # NCCL reads its environment when the group is made.
    os.environ.update(sharing(run.ranks_per_gpu, place.rank, _nccl_version(), os.environ))
    if run.capture_choices:
        os.environ.update(logging(Path(run.out), place.rank))
    return layer.torch_device(index)


def _nccl_version() -> tuple[int, ...]:
    return gpus().nccl_version() or (0, 0, 0)


class _Rank:
    """The state of one rank while it measures."""

    def __init__(self, run: Run, place: Place, device: Any, meeting: Meeting) -> None:
        self.run, self.place, self.device, self.meeting = run, place, device, meeting
        self.folder: RunFolder | None = None
        self.what = "setting up"
        self.loop: NcclLoop | None = None

    def measure(self) -> None:
        try:
            self._connect()
            fault = self._open_folder() if self.place.rank == 0 else None
            self._agree(fault)
            for point in self._remaining():
                self.what = f"{point.task.collective} of {format_bytes(point.size)}"
                self._agree(self._measure(point))
            self._end_loop()
            for task in self._remaining_training():
                self.what = f"training {task.name}"
                self._agree(self._train(task))
            self._agree(self._finish())
        except CommsimError as error:
            self._give_up()
            if isinstance(error, NcclFaultError):
                raise MeasurementError(f"{self.what}: {error}") from error
            raise
        except Exception as error:
            self._give_up()
            raise _failure(self.what, error) from error
        finally:
            if self.folder is not None:
                self.folder.close()

    def _connect(self) -> None:
        run, place = self.run, self.place
        # Times and verdicts travel over gloo whatever the backend measured: they need no GPU.
        backend = "gloo" if run.backend == "gloo" else gpus().c10d_backend
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("group", self.meeting.store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=run.timeout_s),
            **({"device_id": self.device} if self._torch_needs_nccl() else {}),
        )

    def _torch_needs_nccl(self) -> bool:
        """Whether torch's own NCCL is made at once; it would only take the GPU's memory where libnccl is called."""
        run = self.run
        through = all(run.through_libnccl(task) for task in run.tasks) and not run.training
        return run.backend == "nccl" and not through and "nccl" in gpus().c10d_backend

    def _through_libnccl(self) -> NcclLoop:
        """What times collectives in libnccl; its communicator is made with the first of them."""
        if self.loop is None:
            run, place = self.run, self.place
            gpu = place.local_rank // run.ranks_per_gpu
            made = Communicator(gpus(), gpu, place.rank, place.world_size, run.split, run.timeout_s)
            self.loop = NcclLoop(run, made, self.device)
        return self.loop

    def _end_loop(self) -> None:
        if self.loop is not None:
            self.loop.release()
            self.loop.communicator.close()
            self.loop = None

    def _give_up(self) -> None:
        """Ends what may still wait on the GPU for ranks that do not come."""
        if self.loop is not None:
            self.loop.communicator.abort()

    def _open_folder(self) -> str | None:
        """Takes up the folder and tells the others which rows it holds; returns what is wrong with it."""
        try:
            self.folder = RunFolder(Path(self.run.out), self.run.fingerprint())
        except CommsimError as error:
            return str(error)
        self.meeting.store.set("finished", json.dumps(sorted(self.folder.finished)))
        return None

    def _remaining(self) -> list[Point]:
        """The rows still to be measured, the same on every rank; writes the conditions."""
        finished = {tuple(key) for key in json.loads(self.meeting.store.get("finished"))}
        mine = rank_conditions(self.device)
        ranks: list[Any] = [None] * self.place.world_size
        dist.all_gather_object(ranks, mine)
        self.conditions = self._conditions(ranks)
        fault = None
        if self.folder is not None:
            try:
                self.folder.write_conditions(self.conditions | {"finished": False})
            except CommsimError as error:
                fault = str(error)
        self._agree(fault)
        return [point for point in self.run.points() if point.key not in finished]

    def _conditions(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        run = self.run
        return {
            "name": run.name,
            "fingerprint": run.fingerprint(),
            "scenario_hash": run.scenario_hash,
            "backend": run.backend,
            "world_size": run.world_size,
            "network": run.network,
            "mode": run.mode,
            "runner": run.runner,
            "measures": _MEASURES[run.runner],
            **({"graph_launches": run.graph} if run.graph else {}),
            **({"register": run.register} if run.register != "none" else {}),
            **({"split": run.split} if run.split else {}),
            "iterations": run.iterations,
            "warmup": run.warmup,
            "repeats": run.repeats,
            "ranks_per_gpu": run.ranks_per_gpu,
            "commsim": commsim.__version__,
            "started": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "env": environment(),
            **run_conditions(ranks),
            **({"meaning": meaning(run.ranks_per_gpu, _nccl_version())} if run.ranks_per_gpu > 1 else {}),
            **run.conditions,
        }

    def _measure(self, point: Point) -> str | None:
        """Measures one row; returns what is wrong on this rank, None if nothing."""
        places = {}
        through = self.run.through_libnccl(point.task)
        if through and (obstacle := self._through_libnccl().prepare(point)):
            if self.folder is not None:
                print(f"# {self.what} is left out: {obstacle}", flush=True)
            return None
        for place in self.run.places(point.task):
            if through:
                places[place] = self._through_libnccl().sample(point, place, self._traffic)
            else:
                places[place] = sample(self._operation(point, place), self.run, self.device, self._traffic)
        every: list[Any] = [None] * self.place.world_size
        dist.all_gather_object(every, places)
        if self.folder is None:
            return None
        row = _row(point, self.run, every)
        try:
            self.folder.add(row)
        except CommsimError as error:
            return str(error)
        print(format_row(row), flush=True)
        return None

    def _remaining_training(self) -> list[TrainingTask]:
        if self.folder is not None:
            names = [item["name"] for item in self.folder.training()]
            self.meeting.store.set("finished training", json.dumps(names))
        finished = json.loads(self.meeting.store.get("finished training")) if self.run.training else []
        return [task for task in self.run.training if task.name not in finished]

    def _train(self, task: TrainingTask) -> str | None:
        """Measures the steps of one training item; returns what is wrong on this rank, None if nothing."""
        from commsim.measure.training_steps import format_record, measure_steps, training_record

        mine = measure_steps(task, self.place.rank, self.device, self.run.iterations, self._traffic)
        every: list[Any] = [None] * self.place.world_size
        dist.all_gather_object(every, mine)
        if self.folder is None:
            return None
        record = training_record(task, every)
        try:
            self.folder.add_training(record)
        except CommsimError as error:
            return str(error)
        print(format_record(record), flush=True)
        return None

    def _operation(self, point: Point, place: str) -> Operation:
        rank, n = self.place.rank, self.run.world_size
        if not point.task.schedule:
            return operation(point.task, point.size, place, rank, n, self.device)
        return schedule_operation(load_schedule(point.task, n, point.size), point.task, rank, self.device)

    def _traffic(self) -> Bytes | None:
        return tcp_bytes(but_port=self.place.port)

    def _agree(self, fault: str | None) -> None:
        """Raise the same MeasurementError on all ranks if one of them has a fault, or was told of one."""
        fault = fault or (self.meeting.told() if self.place.rank == 0 else None)
        flag = torch.tensor([self.place.rank + 1 if fault else 0])
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        if not int(flag):
            return
        said = [fault]
        dist.broadcast_object_list(said, src=int(flag) - 1)
        raise MeasurementError(said[0] or "unknown fault")

    def _finish(self) -> str | None:
        if self.folder is None:
            return None
        try:
            self.folder.write_conditions(self.conditions | {"finished": True})
            if self.run.capture_choices:
                write_choices(Path(self.run.out))
        except CommsimError as error:
            return str(error)
        return None


def _row(point: Point, run: Run, every: list[dict[str, Sample]]) -> dict[str, Any]:
    """The columns of one row from the samples of all ranks."""
    task, size, ranks = point.task, point.size, run.group_size
    row: dict[str, Any] = {
        "collective": task.collective,
        "n_ranks": ranks,
        "size_bytes": size,
        "count": task.count(size, ranks),
        "dtype": task.dtype,
        "redop": task.redop if task.reduces else "none",
        "root": task.root if task.rooted else -1,
        "algorithm": task.algorithm,
        "iterations": run.iterations,
        "repeat": point.repeat,
    }
    for place in run.places(task):
        samples = [rank[place] for rank in every]
        time_s, columns = (_mean_of_ranks if run.through_libnccl(task) else _slowest_rank)(samples)
        row |= {
            f"{place}_time_us": microseconds(time_s),
            f"{place}_algbw_GBps": gb_per_s(size / time_s),
            f"{place}_busbw_GBps": gb_per_s(size / time_s) * busbw_factor(task.collective, ranks),
            f"{place}_wrong": sum(s.wrong for s in samples) if run.check else "N/A",
            **{f"{place}_{name}_us": microseconds(seconds) for name, seconds in columns.items()},
        }
        if all(s.sent is not None for s in samples):
            row["sent_bytes"] = " ".join(f"{s.sent:.0f}" for s in samples)
    return row


def _mean_of_ranks(samples: list[Sample]) -> tuple[float, dict[str, float]]:
    """The mean over the ranks, as nccl-tests prints it (``-a 1``), beside the fastest and the slowest rank."""
    times = [s.seconds[0] for s in samples]
    mean = sum(times) / len(times)
    return mean, {"mean": mean, "min": min(times), "max": max(times)}


def _slowest_rank(samples: list[Sample]) -> tuple[float, dict[str, float]]:
    """The median over the calls, each of which is over when its slowest rank is through."""
    slowest = torch.tensor([s.seconds for s in samples], dtype=torch.float64).amax(dim=0)
    ends = {"min": float(slowest.min()), "max": float(slowest.max())}
    columns = {"mean": float(slowest.mean()), "p95": float(slowest.quantile(0.95)), **ends}
    return float(slowest.quantile(0.5)), columns


def _failure(what: str, error: BaseException) -> MeasurementError:
    """A fault of torch while doing ``what``, in one line."""
    text = re.sub(r"\[[^\]]*/([\w.]+:\d+)\] ", "", str(error).strip())  # gloo begins with a path of its build machine
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    first = first.split(" This is typically caused")[0].rstrip(".")
    lowered = text.lower()
    if isinstance(error, MemoryError) or "out of memory" in lowered or "can't allocate memory" in lowered:
        return MeasurementError(f"{what}: out of memory ({first[:160]})")
    if any(sign in lowered for sign in ("connection closed", "connection reset", "broken pipe", "socket closed")):
        return MeasurementError(f"{what}: a rank was lost ({first[:160]})")
    if "timed out" in lowered or "timeout" in lowered:
        return _NoAnswerError(f"{what}: no answer from another rank within the time allowed, --timeout ({first[:160]})")
    return MeasurementError(f"{what}: {type(error).__name__}: {first[:240]}")


def _die_with_parent() -> None:
    """Have Linux kill this process when the launcher dies, however it dies: no rank is left behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != int(os.environ.get("COMMSIM_LAUNCHER", os.getppid())):
            os._exit(FAILED)  # it died before the line above


def end_process(status: int) -> NoReturn:
    """Ends this process without taking Python apart.

    gloo's threads outlive their group wherever DDP, FSDP or a device mesh still holds it, and now and then one of them
    touches what Python has freed already: SIGABRT after a run without fault (pytorch/pytorch#179291).
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # whoever read it has gone
            stream.flush()
    os._exit(status)


def main() -> int:
    """Entry point of a rank that the launcher has started; returns its exit status."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides what an interrupt means
    try:
        place = place_from(os.environ)
        if place is None:
            raise MeasurementError("found no RANK in the environment, expected to be started by commsim measure")
        run_rank(Run.from_json(sys.stdin.read()), place)
    except CommsimError as error:
        print(f"commsim: {error}", file=sys.stderr, flush=True)
        return FAILED
    return 0


if __name__ == "__main__":
    end_process(main())
