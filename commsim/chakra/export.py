"""A training step as execution traces, one per rank, which simulate to the step's own time.

A pass is its compute with the calls that stand in it between equal pieces; what hides behind compute (ring attention,
ZeRO-3's shards, overlapped tensor parallelism) is in the pieces, as seconds, and so is what gradients slow compute by.
Gradients leave bucket by bucket as the last backward fills them. A four-byte all_reduce over the pipeline is the
gradient norm, for which every update waits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from commsim.chakra.trace import Node
from commsim.collectives.semantics import NCCL_TESTS, ROOTED
from commsim.errors import InfeasibleError
from commsim.training.flows import Axes
from commsim.training.mesh import parts_of
from commsim.training.pipeline import Action
from commsim.training.simulate import StepRun
from commsim.training.step_costs import completes_gradients, last_of
from commsim.training.step_run import StepProgram, hides_parameters, message_bytes
from commsim.training.work import chunk_calls

MOST_NODES = 2_000_000
_CALLS = frozenset(NCCL_TESTS) - ROOTED - {"send_recv"}
NORM_BYTES = 4


class StepTraces:
    """Traces of a step that was run, by rank, made as they are asked for; ``groups``: members by their name there.

    InfeasibleError for what a trace cannot say, and for more than `MOST_NODES`.
    """

    def __init__(self, program: StepProgram, run: StepRun) -> None:
        self.program = program
        plan, mesh = program.plan, program.mesh
        if plan.stragglers or plan.parameter_server:
            name = "stragglers" if plan.stragglers else "a parameter server"
            raise InfeasibleError(f"found {name}, which a trace cannot say; expected a step without, to export it")
        self._stages = [_Stage(program, stage, run.slowed_s) for stage in range(program.step.pp)]
        total = sum(len(s.nodes) for s in self._stages) * mesh.world_size // len(self._stages)
        if total > MOST_NODES:
            raise InfeasibleError(
                f"the traces of {mesh.world_size:,} ranks would have {total:,} nodes, expected at most {MOST_NODES:,}; "
                "fewer ranks (mesh.dp) or micro-batches (global_batch_size) would fit"
            )
        names: dict[tuple[int, ...], str] = {}
        self._name: dict[tuple[int, Axes], str] = {}
        for of in dict.fromkeys(axes for stage in self._stages for axes in stage.groups.values()):
            for row in parts_of(mesh.groups(*of[0]), *of[1:]).tolist():
                members = tuple(row)
                name = names.setdefault(members, str(len(names) + 1))
                self._name |= {(rank, of): name for rank in members}
        self.groups = {name: members for members, name in names.items()}

    def ranks(self) -> Iterator[tuple[int, list[Node]]]:
        """(rank, nodes) of every rank."""
        mesh = self.program.mesh
        coordinates = mesh.coordinates()
        for rank in range(mesh.world_size):
            at = {axis: int(column[rank]) for axis, column in coordinates.items()}
            stage = self._stages[at["pp"]]
            peers = [mesh.rank(**{**at, "pp": other}) for other in range(mesh.pp)]
            yield rank, [self._of(node, rank, stage, peers) for node in stage.nodes]

    def _of(self, node: Node, rank: int, stage: _Stage, peers: Sequence[int]) -> Node:
        """A node of a stage as one of its ranks has it."""
        if node.kind == "collective":
            return replace(node, group=self._name[rank, stage.groups[node.id]])
        return replace(node, peer=peers[node.peer]) if node.peer >= 0 else node


class _Stage:
    """The nodes of a rank of a stage; peers are stages, and ``groups`` says of a collective's id over which axes."""

    def __init__(self, program: StepProgram, stage: int, slowed: Mapping[int, Sequence[float]]) -> None:
        self.program, self.stage, first = program, stage, program.order.first[stage]
        # Per bucket, or of the pass.
        self._slowed = {a: slowed.get(first + at, [0.0]) for at, a in enumerate(program.order.actions[stage])}
        self.nodes: list[Node] = []
        self.groups: dict[int, Axes] = {}
        self._last = last_of(program.order)
        self._calls = {
            place.chunk: chunk_calls(program.step, place, program.plan)
            for place in program.places
            if place.stage == stage
        }
        self._reduced: list[int] = []  # the gradients' last call, on which the next waits
        self._late: list[tuple[Action, int]] = []  # buckets that wait for the last pass
        before: list[int] = []
        held: list[tuple[Action, str]] = []  # passes whose results leave with the next one's
        for at, action in enumerate(program.order.actions[stage]):
            label = f"{action.kind} {action.micro_batch}" + (
                f" chunk {action.chunk}" if program.order.chunks > 1 else ""
            )
            before = self._pass(action, label, [*before, *self._received(at, label)])
            held.append((action, label))
            if not program.order.is_joint(stage, action):
                before = self._sent(held, before)
                held = []
        self._finish(before)

    def _add(self, name: str, kind: str, deps: Sequence[int], **rest: object) -> int:
        index = len(self.nodes)
        self.nodes.append(Node(index, name, kind, tuple(dict.fromkeys(deps)), **rest))  # type: ignore[arg-type]
        return index

    def _call(self, name: str, collective: str, nbytes: float, axes: Axes, deps: Sequence[int]) -> int:
        """A collective; its size is that of one rank's input."""
        size = axes[1] or self.program.mesh.size(*axes[0]) // axes[2]
        each = nbytes / size if collective == "all_gather" else nbytes
        index = self._add(name, "collective", deps, collective=collective, nbytes=max(1, round(each)))
        self.groups[index] = axes
        return index

    def _received(self, at: int, label: str) -> list[int]:
        """The messages that the action at a position waits for; without sequence parallelism tp gathers each."""
        order, step = self.program.order, self.program.step
        nbytes, first = message_bytes(step), order.first[self.stage] + at
        arrived = []
        for number in chain.from_iterable(order.needed[first : first + len(order.block(self.stage, at))]):
            other = bisect_right(order.first, number) - 1
            if other == self.stage:
                continue
            needed = order.actions[other][number - order.first[other]]
            last = self._add(
                f"receive for {label}", "recv", (), nbytes=round(nbytes), peer=other, tag=self._tag(needed)
            )
            if step.tp > step.sequence_cut:
                last = self._call(f"gather for {label}", "all_gather", nbytes * step.tp, (("tp",), 0, 1), [last])
            arrived.append(last)
        return arrived

    def _sent(self, passes: Sequence[tuple[Action, str]], last: list[int]) -> list[int]:
        """What passes made on its way; returns what the next one waits for."""
        nbytes, sends = round(message_bytes(self.program.step)), []
        for action, label in passes:
            peer = self.program.order.goes_to(self.stage, action)
            if peer is not None:
                sends.append(self._add(f"send {label}", "send", last, nbytes=nbytes, peer=peer, tag=self._tag(action)))
        return last if self.program.machine.overlap_pp else [*last, *sends]

    def _pass(self, action: Action, label: str, before: list[int]) -> list[int]:
        """One pass; returns what follows it waits for."""
        program, stage = self.program, self.stage
        reduces = completes_gradients(program.machine, self._last, stage, action)
        flows = program.machine.reduces[stage][action.chunk] if reduces else ()
        total = sum(flow.nbytes for flow in flows)
        fractions = np.cumsum([flow.nbytes for flow in flows]) / total if flows else np.zeros(0)
        pieces = self._pieces(action)
        whole = sum(seconds for seconds, _ in pieces)
        longer = self._slowed[action]
        at, last, filled = 0.0, before, 0
        for i, (seconds, call) in enumerate(pieces):
            if call is not None:
                last = [self._call(f"{call[0]} of {label}", *call, last)]
                at += seconds
                continue
            end = at + seconds
            # Buckets that fill within this piece cut it; one that fills within a call leaves after it.
            while filled < len(flows) - 1 and fractions[filled] * whole < end:
                cut = max(fractions[filled] * whole - at, 0.0)
                if cut + longer[filled] > 0:
                    last = [self._add(label, "compute", last, seconds=cut + longer[filled])]
                    at += cut
                self._bucket(action, filled, last)
                filled += 1
            rest = max(end - at, 0.0) + (longer[-1] if i + 1 == len(pieces) else 0.0)
            last = [self._add(label, "compute", last, seconds=rest)]
            at = end
        for bucket in range(filled, len(flows)):
            self._bucket(action, bucket, last)
        return last

    def _pieces(self, action: Action) -> list[tuple[float, tuple[str, float, Axes] | None]]:
        """(seconds, (collective, bytes, axes) or None for compute) of a pass, in order, ending with compute."""
        work = self.program.works[self.stage, action.chunk].of(action.kind)
        back = action.kind in ("B", "I")
        calls = [c for c in self._calls[action.chunk] if (c.phase == "backward") == back and action.kind != "W"]
        folded, standing = 0.0, []
        for i, exchange in enumerate(work.exchanges):
            call = calls[i] if i < len(calls) else None
            if call is None or exchange.window or call.collective not in _CALLS or call.ranks == 1:
                folded += exchange.exposed(self.program.machine.slowdown)
            else:
                count = max(1, round(call.count))
                axes: Axes = ((call.axis,), 0, 1)
                standing += [(exchange.seconds / count, (call.collective, call.nbytes, axes))] * count
        compute = ((work.compute + folded) / (len(standing) + 1), None)
        return [compute, *(piece for call in standing for piece in (call, compute))]

    def _bucket(self, action: Action, i: int, last: list[int]) -> None:
        if self.program.machine.overlap_dp:
            self._reduce(action, i, last)
        else:
            self._late.append((action, i))

    def _reduce(self, action: Action, i: int, last: list[int]) -> None:
        flow = self.program.machine.reduces[self.stage][action.chunk][i]
        self._reduced = [self._call(f"gradients {i}", flow.call[0], flow.nbytes, flow.call[1], [*last, *self._reduced])]

    def _finish(self, last: list[int]) -> None:
        machine, mesh = self.program.machine, self.program.mesh
        for action, i in self._late:
            self._reduce(action, i, last)
        ready = [*last, *self._reduced]
        if mesh.pp > 1:
            ready = [self._call("gradient norm", "all_reduce", NORM_BYTES, (("pp",), 0, 1), ready)]
        done = [self._add("optimizer", "compute", ready, seconds=machine.optimizer_s[self.stage])]
        for flow in machine.gathers[self.stage]:
            if hides_parameters(self.program.step):  # what the next step's forward hides is not waited for
                done = [self._add("parameters", "compute", done, seconds=flow.seconds)]
            else:
                done = [self._call("parameters", flow.call[0], flow.nbytes, flow.call[1], done)]
        if machine.constant_s:
            self._add("between steps", "compute", done, seconds=machine.constant_s)

    def _tag(self, action: Action) -> int:
        """One number per message: the micro-batch, the chunk and the way."""
        return (action.micro_batch * self.program.order.chunks + action.chunk) * 2 + (action.kind != "F")
