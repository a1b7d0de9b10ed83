"""The answer to a plan: every configuration ranked in closed form, the best simulated, and why the others lose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from commsim.errors import InfeasibleError
from commsim.planner.clusters import ClusterSpace
from commsim.planner.cost import Cost, run_cost
from commsim.planner.goodput import Outlook, outlook_of
from commsim.planner.nearest import would_fit
from commsim.planner.question import SOFTWARE, PlanSpec
from commsim.planner.ranking import Ranked, Ranking, rank_space
from commsim.planner.space import REASONS
from commsim.training.communicator_memory import communicators_of
from commsim.training.communicators import GroupCalls
from commsim.training.memory import StepMemory, step_memory
from commsim.training.parameters import shipped_values
from commsim.training.spec import Step, StepPlan
from commsim.training.step_run import step_program
from commsim.training.utilisation import model_flops, peak_flop_per_s
from commsim.training.work import compute_time, optimizer_time

KEPT = 64
"""Configurations kept per eighth of a GPU's memory: many are near ties."""

MORE = 8
"""Configurations, beside twice the shortlist, that are tried where some do not fit with their communicators."""

LEAN = 1.5
"""A configuration that needs less memory is shown where it takes at most so many times as long as the best."""

Say = Callable[[str, int, int], None]
"""(what, done, of): progress."""


@dataclass(frozen=True, eq=False)
class Configuration:
    """A configuration of a machine: ranked, then simulated; `cost` and `outlook` where tokens and failures are given.

    `seconds` are those of the simulation where there is one, `causes` add up to them.
    """

    machine: ClusterSpace
    ranked: Ranked
    step: Step
    memory: StepMemory
    seconds: float
    causes: dict[str, float]
    simulated: bool
    cost: Cost | None = None
    outlook: Outlook | None = None

    @property
    def tokens_per_s(self) -> float:
        """Of the whole machine."""
        return self.ranked.tokens / self.seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs over the peak."""
        return model_flops(self.step) / self.seconds / peak_flop_per_s(self.step)

    def mesh(self) -> dict[str, Any]:
        """What was chosen, by name."""
        names = {name: self.machine.space.axes[name][i] for name, i in self.ranked.places.items()}
        return {**names, "dp": self.step.dp}


@dataclass
class PlanAnswer:
    """Counts of each machine's space and the choices, best first; it fills as the search goes on."""

    rankings: dict[str, Ranking] = field(default_factory=dict)
    choices: list[Configuration] = field(default_factory=list)
    complete: bool = False
    would_fit: str = ""  # where nothing fits: what the leanest needs, and the cheapest change that makes it fit

    @property
    def best(self) -> Configuration:
        """The quickest per token; InfeasibleError where nothing fits."""
        if not self.choices:
            raise InfeasibleError(self.why_nothing())
        return self.choices[0]

    def why_nothing(self) -> str:
        """What stood in the way most often."""
        total = sum((ranking.counts for ranking in self.rankings.values()), Counter[str]())
        walked, memory = total.total(), total[REASONS[-1]]
        if memory:
            text = f"does not fit: all {memory:,} configurations that can run need more memory than a GPU has"
            return f"{text}{self.would_fit}"
        worst = max(total, key=lambda k: total[k], default="nothing was walked")
        return f"found no configuration that can run of {walked:,}: mostly {worst}"

    def pareto(self) -> list[Configuration]:
        """The choices that no other beats in time per token, memory, GPUs and dollars at once, best first."""
        return [c for c in self.choices if not any(_beats(other, c) for other in self.choices if other is not c)]


def _aims(c: Configuration) -> tuple[float, ...]:
    usd = c.cost.usd if c.cost is not None else 0.0
    return (c.seconds / c.ranked.tokens, c.memory.peak, float(c.step.world_size), usd)


def _beats(one: Configuration, other: Configuration) -> bool:
    a, b = _aims(one), _aims(other)
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


def rank(spec: PlanSpec, clusters: list[ClusterSpace], answer: PlanAnswer, say: Say | None = None) -> None:
    """Walks the space of every machine; `answer` fills as it goes."""
    whole = sum(machine.space.size for machine in clusters)
    done = 0
    for machine in clusters:
        ranking = answer.rankings.setdefault(machine.title, Ranking())

        def progress(walked: int, before: int = done) -> None:
            if say is not None:
                say("ranking", before + walked, whole)

        rank_space(machine.space, spec.memory, shipped_values(), keep=KEPT, progress=progress, ranking=ranking)
        done += machine.space.size
    if not any(ranking.best for ranking in answer.rankings.values()):
        lean = [(machine, r) for machine in clusters if (r := answer.rankings[machine.title].leanest) is not None]
        answer.would_fit = would_fit(spec, lean)


def shortlist(spec: PlanSpec, clusters: list[ClusterSpace], answer: PlanAnswer) -> list[tuple[ClusterSpace, Ranked]]:
    """The best of all machines by time per token; of each machine at least one, and each eighth of memory's best."""
    everything = [(m, r) for m in clusters for r in answer.rankings[m.title].best]
    everything.sort(key=lambda pair: pair[1].seconds_per_token)
    chosen = everything[: spec.best]
    for machine in clusters:
        mine = [pair for pair in everything if pair[0] is machine]
        quick = [pair for pair in mine if pair[1].seconds_per_token <= LEAN * everything[0][1].seconds_per_token]
        leanest = sorted(quick, key=lambda pair: pair[1].memory_bytes)[:1]
        chosen += [pair for pair in (*mine[:1], *leanest) if pair not in chosen]
    return chosen


def simulate(
    spec: PlanSpec,
    chosen: list[tuple[ClusterSpace, Ranked]],
    answer: PlanAnswer,
    say: Say | None = None,
) -> None:
    """Runs the step model on the shortlist; `answer.choices` is sorted after each."""
    times: dict[str, GroupCalls] = {}
    waiting, most = list(chosen), 2 * len(chosen) + MORE
    for done, (machine, ranked) in enumerate(waiting):  # which grows
        if say is not None:
            say("simulating", done, len(waiting))
        choice = simulated(spec, machine, ranked, times)
        if not choice.memory.fits:
            ranking = answer.rankings.get(machine.title)
            other = ranking.instead([r for m, r in waiting if m is machine]) if ranking is not None else None
            waiting += [(machine, other)] if other is not None and len(waiting) < most else []
            continue
        answer.choices.append(choice)
        answer.choices.sort(key=lambda c: c.seconds / c.ranked.tokens)
    answer.complete = True


def simulated(spec: PlanSpec, machine: ClusterSpace, ranked: Ranked, times: dict[str, GroupCalls]) -> Configuration:
    """A configuration as the step model runs it; with its communicators it may not fit. `times`: by machine, filled."""
    from commsim.scenario.training_run import comm_times

    if machine.title not in times:
        times[machine.title] = comm_times(machine.setting, machine.topology)
    calls, choice = times[machine.title].fresh(), _choice(spec, machine, ranked)
    program = step_program(
        choice.step,
        compute_time(choice.step),
        calls,
        optimizer_s=optimizer_time(choice.step),
        calls=calls,
        plan=StepPlan(values=shipped_values()),
    )
    run = program.run()
    made = communicators_of(calls, program.mesh, machine.topology.gpu.sm, machine.setting.library.named_version)
    memory = made.beside(spec.memory)(choice.memory)
    choice = replace(choice, memory=memory, seconds=run.step_s, causes=run.breakdown(), simulated=True)
    return with_money(spec, choice)


def ranked_choices(spec: PlanSpec, chosen: list[tuple[ClusterSpace, Ranked]], answer: PlanAnswer) -> None:
    """The shortlist as it was ranked, without simulation."""
    answer.choices += [with_money(spec, _choice(spec, machine, ranked)) for machine, ranked in chosen]
    answer.complete = True


def _choice(spec: PlanSpec, machine: ClusterSpace, ranked: Ranked) -> Configuration:
    step = machine.space.step(ranked.places)
    memory = step_memory(step, spec.memory)
    return Configuration(machine, ranked, step, memory, ranked.seconds, dict(ranked.parts), simulated=False)


def with_money(spec: PlanSpec, choice: Configuration) -> Configuration:
    """The choice with failures and cost, where the question gives what they need."""
    topology, cluster = choice.machine.topology, choice.machine.cluster
    view = outlook_of(spec.failures, topology, choice.step) if spec.failures is not None else None
    if not spec.tokens:
        return replace(choice, outlook=view)
    cost = run_cost(topology, cluster, spec.tokens, choice.tokens_per_s, view.goodput if view else 1.0)
    return replace(choice, outlook=view, cost=cost)


def scenario_of(choice: Configuration, spec: PlanSpec, name: str) -> dict[str, Any]:
    """The scenario file of a choice, as plain values: `commsim run` simulates it."""
    step, mesh = choice.step, choice.mesh()
    training: dict[str, Any] = {
        "model": spec.model,
        "seq_len": step.seq_len,
        "global_batch_size": step.global_batch_size,
        "micro_batch_size": step.micro_batch_size,
        "mesh": {axis: getattr(step, axis) for axis in ("tp", "pp", "cp", "dp", "ep")},
        "virtual_stages": step.virtual_stages,
        "pipeline_schedule": step.schedule,
        "sequence_parallel": step.sequence_parallel,
        "zero_stage": step.zero_stage,
        "recompute": step.recompute,
        "precision": mesh["precision"],
        "framework": spec.memory,
    }
    idle = {
        "recompute_modules": step.recompute != "selective",
        "packed": not spec.packed,
        "overlap_ep": not spec.overlap_ep,
        "imbalance": spec.imbalance == 1.0,
    }
    training |= {name: getattr(spec, name) for name in SOFTWARE if not idle.get(name, False)}
    if choice.machine.cluster.accelerator:
        training["accelerator"] = choice.machine.cluster.accelerator
    if spec.tokens:
        price = choice.machine.cluster.gpu_hour_usd
        training["task"] = {"kind": "pretrain", "tokens": spec.tokens} | ({"gpu_hour_usd": price} if price else {})
    cluster = choice.machine.cluster
    topology, library = (
        block.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        for block in (cluster.topology, cluster.library)
    )
    named = {"library": {"name": "nccl"} | library} if library else {}
    return {"name": name, "topology": topology, **named, "workload": [{"training": training}]}
