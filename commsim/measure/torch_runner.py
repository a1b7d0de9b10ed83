"""One rank of a run: meets the others, measures row after row, and says in one line why it stopped.

The launcher of `commsim measure` starts it as ``python -m commsim.measure.torch_runner`` with the run on standard
input; under torchrun or srun the command line calls `run_rank` in the process that is already there.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from commsim.errors import CommsimError, MeasurementError
from commsim.measure.capture import begin as begin_capture
from commsim.measure.capture import capture_environment, is_captured
from commsim.measure.capture import finish as finish_capture
from commsim.measure.communicator import Communicator
from commsim.measure.conditions import nccl_configuration, rank_conditions
from commsim.measure.gpu import gpus
from commsim.measure.gpu_conditions import gpu_conditions, gpu_state, host_conditions, loaded_plugins, slowed
from commsim.measure.libnccl import NcclFaultError
from commsim.measure.nccl_loop import NcclLoop
from commsim.measure.operations import ReadyCollective, operation
from commsim.measure.rank_end import FAILED, NoAnswerError, die_with_parent, end_process, failure_of, fault_of
from commsim.measure.ranks import Ranks, form_group
from commsim.measure.rendezvous import Place, Rendezvous, place_from
from commsim.measure.row_times import RowTimes
from commsim.measure.run import Repeat, Run
from commsim.measure.run_folder import JOBS, TRAINING, RunFolder
from commsim.measure.schedule_steps import load_schedule, schedule_operation
from commsim.measure.seat import conditions_of, take_seat
from commsim.measure.side_by_side import format_jobs, jobs_record, measure_jobs
from commsim.measure.table import format_row
from commsim.measure.tasks import JobsTask, TrainingTask
from commsim.measure.timing import Sample, late, row_of, sample
from commsim.measure.traffic import Counters, SentShares
from commsim.units import format_bytes

LEAST_PATIENCE_S = 8.0

_PATIENCE_S = 1.0
"""For which a rank that failed waits for the word of another that failed before it."""


def run_rank(run: Run, place: Place, spent_s: float = 0.0) -> None:
    """Measures a run as one of its ranks; rank 0 writes the rows and prints them.

    `spent_s`: what starting has taken, which counts as waiting for the other ranks.

    Raises MeasurementError, on every rank that is still alive, where the run cannot go on.
    """
    if place.world_size != run.world_size:
        raise MeasurementError(f"{place}: the run is for {run.world_size} ranks")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    patience_s = max(min(LEAST_PATIENCE_S, run.arrival_s), run.arrival_s - spent_s)
    meeting = Rendezvous(place, run.fingerprint(), patience_s)
    rank = _Rank(run, place, meeting)
    try:
        rank.work()
    except CommsimError as error:
        # Who fails because another one failed says what that one said; who waited in vain is the first to know.
        reason = meeting.told(0.0 if isinstance(error, NoAnswerError) else _PATIENCE_S)
        meeting.leave(str(error))
        raise MeasurementError(f"{place}: {reason or error}") from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


class _Rank:
    """The state of one rank while it measures."""

    def __init__(self, run: Run, place: Place, meeting: Rendezvous) -> None:
        self.run, self.place, self.meeting = run, place, meeting
        self.ranks = Ranks(place, meeting)
        self.folder: RunFolder | None = None
        self.doing = "setting up"
        self.conditions: dict[str, Any] = {}
        self.left_out: list[dict[str, Any]] = []
        self.slowed: set[str] = set()
        self.sent = SentShares()
        self.loop: NcclLoop | None = None
        self.times = RowTimes(time.monotonic(), run.seconds)
        self.cut_short = False

    def work(self) -> None:
        """Measures or captures; on a fault it gives up, and says what was being done."""
        try:
            if self.run.capture:
                self._capture()
            else:
                self._measure_all()
        except CommsimError as error:
            self._give_up()
            if isinstance(error, NcclFaultError):
                raise MeasurementError(f"{self.doing}: {error}") from error
            raise
        except Exception as error:
            self._give_up()
            raise failure_of(self.doing, error) from error
        finally:
            if self.folder is not None:
                self.folder.close()

    def _measure_all(self) -> None:
        """Measures what is missing."""
        self._sit_down()
        form_group(self.run, self.seat, self.meeting)
        self._learn_conditions()
        self.ranks.agree(fault_of(self._open_folder) if self.place.rank == 0 else None)
        self.ranks.agree(self._write_conditions(finished=False))
        for point in self._remaining():
            if self._time_is_up():
                break
            self.doing = f"{point.task.collective} of {format_bytes(point.size)}"
            if self.run.seconds is not None and self.ranks.rank_0_says(self.times.is_too_long(point)):
                self.cut_short = True
                continue  # a smaller one may follow
            begin = time.monotonic()
            self.ranks.agree(self._measure(point))
            self.times.add(point, time.monotonic() - begin)
        self._end_loop()
        for task in self._remaining_training():
            if self._time_is_up():
                break
            self.doing = f"training {task.name}"
            self.ranks.agree(self._train(task))
        for repeat, jobs in self._remaining_jobs():
            if self._time_is_up():
                break
            self.doing = jobs.name
            self.ranks.agree(self._side_by_side(jobs, repeat))
        self.ranks.agree(self._finish())

    def _capture(self) -> None:
        """Has NCCL say what it chooses: every row once, untimed; nothing is done where it has said so already."""
        run, folder = self.run, Path(self.run.out)
        needed = False
        if self.place.rank == 0 and not is_captured(folder, run.capture):
            begin_capture(folder)  # before NCCL begins, which makes no folder
            needed = True
        if not self.meeting.gather("capture", needed, run.timeout_s)[0]:
            return
        self._sit_down()
        os.environ.update(capture_environment(folder, self.place.rank, graphs=run.capture_graphs))
        form_group(self.run, self.seat, self.meeting)
        for point in run.points():
            self.doing = f"capturing the choice for {point.task.collective} of {format_bytes(point.size)}"
            for place in run.places(point.task):
                self.ranks.within_memory(self.doing, partial(self._once, point, place))
        self._end_loop()
        finished = partial(finish_capture, folder, run.capture)
        self.ranks.agree(fault_of(finished) if self.place.rank == 0 else None)

    def _once(self, point: Repeat, place: str) -> None:
        if self.run.through_libnccl(point.task):
            loop = self._through_libnccl()
            if loop.prepare(point) is None:
                loop.once(point, place)
            return
        op = self._operation(point, place)
        op.fill()
        op.call()
        if self.seat.gpu is not None:
            self.seat.gpu.synchronize()

    def _sit_down(self) -> None:
        """Learns where this rank is, before NCCL and gloo begin."""
        self.seat = take_seat(self.run, self.place, self.meeting)
        self.device = self.seat.device
        env = nccl_configuration() | os.environ  # NCCL's files stand in where the environment is silent
        hosts, rank = list(self.seat.hosts), self.place.rank
        self.counters = Counters(self.seat.gpu, self.seat.index, hosts, rank, env, self.place.port)

    def _time_is_up(self) -> bool:
        """Whether the run's seconds are over, by the clock of rank 0; the same on every rank."""
        over = self.run.seconds is not None and self.ranks.rank_0_says(self.times.is_over)
        self.cut_short |= over
        return over

    def _learn_conditions(self) -> None:
        """What all ranks run on; on every rank, as all say it to each other."""
        seat = self.seat
        mine: dict[str, Any] = rank_conditions(seat.hosts[self.place.rank])
        state: dict[str, Any] = {}
        if seat.gpu is not None:
            first_of_host = seat.hosts.index(seat.hosts[self.place.rank]) == self.place.rank
            mine |= gpu_conditions(seat.gpu, seat.index) | {"counted": " and ".join(self.counters.ways) or "nothing"}
            mine |= {"plugins": loaded_plugins(), "nccl_conf": nccl_configuration()}
            state = {"state": gpu_state(seat.gpu, seat.index)}
            state |= {"host": host_conditions(seat.gpu)} if first_of_host else {}
        ranks = self.ranks.of_all((mine, state))
        self.conditions = conditions_of(self.run, seat, [own for own, _ in ranks])
        if seat.gpu is not None:
            hosts = [more["host"] for _, more in ranks if "host" in more]
            self.conditions |= {"gpu_states": {"before": [more["state"] for _, more in ranks]}, "machines": hosts}

    def _through_libnccl(self) -> NcclLoop:
        """What times collectives in libnccl; its communicator is made with the first of them."""
        if self.loop is None:
            run, place = self.run, self.place
            made = Communicator(gpus(), self.seat.index, place.rank, place.world_size, run.split, run.timeout_s)
            self.loop = NcclLoop(run, made, self.device)
        return self.loop

    def _end_loop(self) -> None:
        if self.loop is not None:
            if self.run.register != "none":
                self.conditions["registered"] = self.loop.registered
            self.loop.release()
            self.loop.communicator.close()
            self.loop = None

    def _give_up(self) -> None:
        """Ends what may still wait on the GPU for ranks that do not come."""
        if self.loop is not None:
            self.loop.communicator.abort()

    def _open_folder(self) -> None:
        """Takes up the folder, and prints what must be known of the machine."""
        self.folder = RunFolder(Path(self.run.out), self.run.fingerprint(), self.conditions)
        warnings = list(self.conditions.get("differs", []))
        if "nvml" in self.conditions:
            warnings.append("without NVML (pip install nvidia-ml-py) NVLink is not counted, nor are slow clocks seen")
        for warning in warnings:
            print(f"# warning: {warning}", flush=True)

    def _write_conditions(self, *, finished: bool) -> str | None:
        if self.folder is None:
            return None
        document = self.conditions | {"left_out": self.left_out, "finished": finished}
        return fault_of(partial(self.folder.write_conditions, document))

    def _remaining(self) -> list[Repeat]:
        """The rows still to be measured, the same on every rank."""
        finished = self.ranks.of_all(set() if self.folder is None else self.folder.finished)[0]
        return [point for point in self.run.points() if point.key not in finished]

    def _measure(self, point: Repeat) -> str | None:
        """Measures one row; returns what is wrong on this rank, None if nothing.

        A row for which a rank has no memory is left out by all.
        """
        places: dict[str, Sample] = {}
        through = self.run.through_libnccl(point.task)
        if through and (obstacle := self._through_libnccl().prepare(point)):
            return self._leave_out(obstacle)
        for place in self.run.places(point.task):
            if through:
                work: Callable[[], Sample] = partial(self._through_libnccl().sample, point, place, self.counters)
            else:
                op, full = self.ranks.within_memory(self.doing, partial(self._operation, point, place))
                if op is None:
                    return self._leave_out(full)
                op = late(op, self.run.late_of(self.place.rank))
                work = partial(sample, op, self.run, self.device, self.counters)
            taken, full = self.ranks.within_memory(self.doing, work)
            if taken is None:
                del work
                return self._leave_out(full)
            places[place] = taken
        every = self.ranks.of_all(places)
        self._look_at_gpu()
        if self.folder is None:
            return None
        row = row_of(point, self.run, every)
        self.sent.add(point.task.algorithm or point.task.collective, point.size, row)
        return _kept(self.folder.add, row, format_row)

    def _leave_out(self, why: str) -> str | None:
        """Goes on without a row or a training item, and says so."""
        gc.collect()
        if self.seat.gpu is not None:
            self.seat.gpu.release_memory()
        self.left_out.append({"what": self.doing, "why": why})
        if self.folder is not None:
            print(f"# {self.doing}: left out, {why}", flush=True)
        return self._write_conditions(finished=False)

    def _look_at_gpu(self) -> None:
        """Notes what takes clock away from this rank's GPU just now."""
        if self.seat.gpu is not None:
            self.slowed |= set(slowed(gpu_state(self.seat.gpu, self.seat.index)))

    def _items(self, kind: str) -> list[dict[str, Any]]:
        """The items of a kind that the folder holds, the same on every rank."""
        return self.ranks.of_all([] if self.folder is None else self.folder.items(kind))[0]

    def _remaining_training(self) -> list[TrainingTask]:
        finished = {item["name"] for item in self._items(TRAINING)} if self.run.training else set()
        return [task for task in self.run.training if task.name not in finished]

    def _remaining_jobs(self) -> list[tuple[int, JobsTask]]:
        """Items of jobs still to be measured, with the number of the repeat."""
        finished = {(item["repeat"], item["name"]) for item in self._items(JOBS)} if self.run.jobs else set()
        every = [(repeat, jobs) for repeat in range(self.run.repeats) for jobs in self.run.jobs]
        return [(repeat, jobs) for repeat, jobs in every if (repeat, jobs.name) not in finished]

    def _side_by_side(self, jobs: JobsTask, repeat: int) -> str | None:
        """Measures one item of jobs; returns what is wrong on this rank, None if nothing."""
        mine, full = self.ranks.within_memory(
            self.doing, lambda: (measure_jobs(jobs, self.run, self.place.rank, self.device),)
        )
        if mine is None:
            return self._leave_out(full)
        every = self.ranks.of_all(mine[0])
        if self.folder is None:
            return None
        return _kept(partial(self.folder.add_item, JOBS), jobs_record(jobs, repeat, every), format_jobs)

    def _train(self, task: TrainingTask) -> str | None:
        """Measures the steps of one training item; returns what is wrong on this rank, None if nothing."""
        from commsim.measure.training_steps import format_record, measure_steps, training_record

        rank, steps, gpu = self.place.rank, self.run.iterations, self.seat.gpu
        mine, full = self.ranks.within_memory(
            self.doing, lambda: measure_steps(task, rank, self.device, steps, self.counters, gpu)
        )
        if mine is None:
            return self._leave_out(full)
        every = self.ranks.of_all(mine)
        self._look_at_gpu()
        if self.folder is None:
            return None
        return _kept(partial(self.folder.add_item, TRAINING), training_record(task, every), format_record)

    def _operation(self, point: Repeat, place: str) -> ReadyCollective:
        rank, n = self.place.rank, self.run.world_size
        if not point.task.schedule:
            return operation(point.task, point.size, place, rank, n, self.device)
        return schedule_operation(load_schedule(point.task, n, point.size), point.task, rank, self.device)

    def _finish(self) -> str | None:
        self.conditions["sent_of_expected"] = self.sent.shares()
        for line in self.sent.lines(self.counters.ways):
            print(line, flush=True)
        if self.seat.gpu is not None:
            every = self.ranks.of_all((gpu_state(self.seat.gpu, self.seat.index), sorted(self.slowed)))
            self.conditions["gpu_states"]["after"] = [state for state, _ in every]
            slow = {str(rank): reasons for rank, (_, reasons) in enumerate(every) if reasons}
            if slow:
                self.conditions["slowed"] = slow
            for rank, reasons in slow.items() if self.folder is not None else ():
                print(f"# warning: the GPU of rank {rank} was slowed down: {', '.join(reasons)}", flush=True)
        return self._write_conditions(finished=not self.cut_short)


def _kept(
    add: Callable[[dict[str, Any]], None], record: dict[str, Any], text: Callable[[dict[str, Any]], str]
) -> str | None:
    """Adds a record to the folder and prints it; returns why it cannot be added, None where it is."""
    fault = fault_of(partial(add, record))
    if fault is None:
        print(text(record), flush=True)
    return fault


def main() -> int:
    """Entry point of a rank that the launcher has started; returns its exit status."""
    die_with_parent()
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
