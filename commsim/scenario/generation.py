"""A ``generation:`` item of a scenario: a model that answers requests, and what does not go with its machine."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from commsim.document import failing, refuse
from commsim.document.types import KeyFaults, show
from commsim.errors import CommsimError
from commsim.generation.formats import CACHE_BYTES, format_of, formats
from commsim.generation.policy import Policy, policy_of
from commsim.generation.replica import Engine, Replica
from commsim.generation.requests import MOST_REQUESTS, MOST_TOKENS, Lengths, Requests, drawn, read_requests
from commsim.scenario.strict import Strict
from commsim.scenario.training import accelerator_of
from commsim.scenario.training_parts import Count, refusals
from commsim.topology.graph import Topology
from commsim.training.accelerator import accelerator
from commsim.training.model import Model, model

Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
RELEASE = r"[0-9]{1,3}(\.[0-9]{1,3}){1,2}"


class LengthSpec(Strict):
    """Tokens of prompts or answers; the number alone may stand in place of the block."""

    tokens: Tokens = Field(description="of each; the longest of a range, the mean of a long tail")
    range_ratio: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="drawn evenly from that part of `tokens` to `tokens`, as serving benchmarks do",
    )
    cv: float = Field(
        default=0.0,
        ge=0,
        le=10,
        description="drawn with a long tail (log-normal): the deviation over the mean, such as 1.0",
    )
    most: Tokens | None = Field(default=None, description="what is drawn longer is cut there")

    @model_validator(mode="after")
    def _one_way(self) -> LengthSpec:
        least = self.tokens if self.cv > 0 else self.range_ratio * self.tokens
        what = f"a mean of {self.tokens}" if self.cv > 0 else f"lengths from {least:g} up"
        refuse(
            (self.cv > 0 and self.range_ratio < 1, ("cv",), "found cv beside range_ratio, expected one of them"),
            (
                self.most is not None and least > self.most,
                ("tokens",),
                f"found {what}, expected at most {self.most}, where lengths are cut",
            ),
        )
        return self

    @property
    def lengths(self) -> Lengths:
        """As requests are drawn by."""
        return Lengths(self.tokens, self.range_ratio, self.cv, self.most)


def _in_full(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return {"tokens": value}
    if isinstance(value, (dict, LengthSpec)):
        return value
    raise ValueError(f"found {show(value)}, expected tokens such as 1024, or a block with them")


Length = Annotated[LengthSpec, BeforeValidator(_in_full, json_schema_input_type=Tokens | LengthSpec)]


class ReplicaMesh(Strict):
    """How the GPUs of one replica are cut; a machine holds as many replicas as it has room for."""

    tp: Count = Field(default=1, description="tensor parallel ranks")
    pp: Count = Field(default=1, description="pipeline stages")
    attention_dp: Count = Field(
        default=1, description="groups of tp ranks with sequences of their own in attention, which share the experts"
    )
    ep: Count = Field(default=1, description="ranks that experts are dealt to; what it leaves of tp cuts each expert")

    @property
    def gpus(self) -> int:
        """Of one replica."""
        return self.tp * self.pp * self.attention_dp


class SchedulerSpec(Strict):
    """What the engine's scheduler does; what is left out is as the framework does it."""

    token_budget: Count | None = Field(default=None, description="tokens of one step, of each group of attention")
    most_sequences: Count | None = Field(default=None, description="under way at once, of each group of attention")
    mixed: bool | None = Field(default=None, description="chunks of prompts go beside decoding sequences")
    chunked: bool | None = Field(default=None, description="prompts are cut to what the budget leaves")
    reserve_answer: bool | None = Field(
        default=None, description="the cache is reserved for whole answers: nothing is preempted"
    )
    intake_steps: Count | None = Field(
        default=None,
        description="decode steps from one look for new requests to the next (SGLang, `--scheduler-recv-interval`)",
    )


class PrefillSpec(Strict):
    """A pool of its own for prompts, on the first GPUs of the machine; its caches are sent to the others."""

    replicas: Count = Field(default=1, description="that read prompts")
    mesh: ReplicaMesh = Field(default_factory=ReplicaMesh, description="of each of them")
    token_budget: Count | None = Field(default=None, description="tokens of one step; left out: as the framework does")


class GenerationSpec(Strict):
    """Requests on replicas of a model: who comes when, how long, and how the engines are set up."""

    model: str = Field(min_length=1, description="a preset, or a Hugging Face `config.json` beside the scenario")
    mesh: ReplicaMesh = Field(default_factory=ReplicaMesh, description="how one replica is cut")
    framework: Literal["vllm", "sglang", "tensorrt_llm", "hf"] = Field(
        default="vllm",
        description="whose scheduler, kernels and host; `hf`: `generate` of transformers, batch by batch",
    )
    release: str | None = Field(
        default=None, pattern=f"^{RELEASE}$", description="of the framework; left out: the newest that was measured"
    )
    cuda_graphs: bool = Field(default=True, description="decode steps are replayed as CUDA graphs")
    precision: str = Field(default="bf16", description="of weights: `bf16`, `fp8`, `fp8_block`, `nvfp4`, `int4` ...")
    expert_precision: str | None = Field(default=None, description="of experts' weights; left out: as `precision`")
    cache_precision: str = Field(
        default="bf16", description=f"of the cache: {', '.join(f'`{c}`' for c in CACHE_BYTES)}"
    )
    accelerator: str | None = Field(default=None, description="another datasheet than that of the topology's GPU")
    prompt: Length | None = Field(default=None, description="tokens of a prompt, or how they are drawn")
    answer: Length | None = Field(default=None, description="tokens of an answer, or how they are drawn")
    file: str | None = Field(
        default=None,
        min_length=1,
        description="requests as a CSV file beside the scenario: `prompt`, `answer` and, optional, `arrival_s`",
    )
    batch: Count | None = Field(
        default=None,
        description="requests that each replica has at once: a closed loop, whose clients wait for answers",
    )
    concurrency: Count | None = Field(default=None, description="the same of all replicas together")
    rate: float | None = Field(
        default=None, gt=0, le=1e6, description="requests a second that come independently of each other (Poisson)"
    )
    requests: Annotated[int, Field(ge=1, le=MOST_REQUESTS)] | None = Field(
        default=None,
        description="how many; left out: ten for each client of a closed loop (of many: two), else 1000",
    )
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(default=0, description="of lengths and arrivals")
    scheduler: SchedulerSpec = Field(default_factory=SchedulerSpec, description="where it is set up otherwise")
    prefill: PrefillSpec | None = Field(
        default=None, description="prompts are read by replicas of their own, and caches sent over the network"
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> GenerationSpec:
        loads = [name for name in ("batch", "concurrency", "rate") if getattr(self, name) is not None]
        lengths = [name for name in ("prompt", "answer") if getattr(self, name) is not None]
        missing = [name for name in ("prompt", "answer") if name not in lengths]
        no_lengths = f"found neither {' nor '.join(missing)} nor file, expected tokens such as 1024"
        refuse(
            *refusals(model, None if self.model.endswith(".json") else self.model, ("model",)),
            *refusals(accelerator, self.accelerator, ("accelerator",)),
            *refusals(format_of, self.precision, ("precision",)),
            *refusals(format_of, self.expert_precision, ("expert_precision",)),
            (
                self.cache_precision not in CACHE_BYTES,
                ("cache_precision",),
                f"found {self.cache_precision!r:.60}, expected one of {', '.join(CACHE_BYTES)}",
            ),
            (bool(self.file is None and missing), (), no_lengths),
            (bool(self.file is not None and lengths), tuple(lengths[:1]), "found it beside file, expected one of them"),
            (len(loads) > 1, tuple(loads[1:2]), f"found {' and '.join(loads)}, expected one of them"),
            (
                self.file is not None and self.requests is not None,
                ("requests",),
                "found it beside file, which has them",
            ),
            (self.framework == "hf" and self.prefill is not None, ("prefill",), "found it with hf, which has no pools"),
        )
        return self


def load_faults(spec: GenerationSpec) -> KeyFaults:
    """Of an item that says neither how many requests there are at once nor when they come."""
    given = any(getattr(spec, name) is not None for name in ("batch", "concurrency", "rate", "file"))
    return failing((not given, (), "found no load, expected one of batch, concurrency, rate"))


def model_of(spec: GenerationSpec, base_dir: Path) -> Model:
    """The model: a preset, or a Hugging Face config.json beside the scenario."""
    if not spec.model.endswith(".json"):
        return model(spec.model)
    from commsim.training.hf_config import read_hf_config

    return read_hf_config(base_dir / spec.model)


def replica_of(spec: GenerationSpec, mesh: ReplicaMesh, topology: Topology, base_dir: Path) -> Replica:
    """One replica cut in some way; CommsimError where that cannot be."""
    release = tuple(int(part) for part in (spec.release or "0").split("."))
    padded = (*release, 0, 0)[:3]
    return Replica(
        model_of(spec, base_dir),
        accelerator_of(topology) if spec.accelerator is None else accelerator(spec.accelerator),
        Engine(spec.framework, (padded[0], padded[1], padded[2]), spec.cuda_graphs),
        tp=mesh.tp,
        pp=mesh.pp,
        attention_dp=mesh.attention_dp,
        moe_ep=mesh.ep,
        formats=formats(spec.precision, spec.expert_precision or "", spec.cache_precision),
    )


def policy_for(spec: GenerationSpec, replica: Replica) -> Policy:
    """The framework's scheduler, with what the item says of it."""
    said = {name: value for name, value in dict(spec.scheduler).items() if value is not None}
    return replace(policy_of(replica), **said)


def replicas_on(spec: GenerationSpec, topology: Topology) -> int:
    """Replicas that decode: as many as the GPUs hold that are not the prefill pool's."""
    taken = 0 if spec.prefill is None else spec.prefill.replicas * spec.prefill.mesh.gpus
    return (topology.world_size - taken) // spec.mesh.gpus


MANY_REQUESTS = 100_000
"""From here on clients send fewer than ten requests each where the item does not say how many."""


def requests_of(spec: GenerationSpec, replicas: int, base_dir: Path) -> Requests:
    """The requests of the item on so many replicas."""
    clients = spec.concurrency or (spec.batch or 0) * replicas
    if spec.file is not None:
        requests = read_requests(base_dir / spec.file)
    else:
        assert spec.prompt is not None
        assert spec.answer is not None
        count = spec.requests or (min(10 * clients, max(MANY_REQUESTS, 2 * clients)) if clients else 1000)
        requests = drawn(spec.prompt.lengths, spec.answer.lengths, count, spec.seed)
    if spec.rate is not None:
        return requests.poisson(spec.rate, spec.seed)
    return requests.closed(clients) if clients else requests


def machine_faults(spec: GenerationSpec, topology: Topology, base_dir: Path) -> KeyFaults:
    """What does not go with the machine, each at its key."""
    if not topology.one_build:
        return [((), "found nodes of different kinds, expected nodes that are alike, some of which may have faults")]
    unread = refusals(partial(model_of, spec), base_dir, ("model",))
    if spec.accelerator is None:
        unread += refusals(accelerator_of, topology, ("accelerator",))
    if spec.file is not None:
        unread += _file_faults(spec, base_dir)
    if unread:
        return failing(*unread)
    pools: list[tuple[tuple[str, ...], ReplicaMesh]] = [(("mesh",), spec.mesh)]
    if spec.prefill is not None:
        pools.append((("prefill", "mesh"), spec.prefill.mesh))
    faults = [fault for path, mesh in pools for fault in _mesh_faults(spec, mesh, path, topology, base_dir)]
    return faults or _count_faults(spec, topology)


def _file_faults(spec: GenerationSpec, base_dir: Path) -> list[tuple[bool, tuple[str, ...], str]]:
    assert spec.file is not None
    try:
        requests = read_requests(base_dir / spec.file)
    except CommsimError as error:
        return [(True, ("file",), str(error))]
    loads = [name for name in ("batch", "concurrency", "rate") if getattr(spec, name) is not None]
    if requests.arrival_s is None and not loads:
        return [(True, ("file",), "found no arrival_s in it, expected it, or one of batch, concurrency, rate here")]
    if requests.arrival_s is not None and loads:
        return [(True, (loads[0],), f"found {loads[0]} beside arrival_s in {spec.file}, expected one of them")]
    return []


def _mesh_faults(
    spec: GenerationSpec, mesh: ReplicaMesh, path: tuple[str, ...], topology: Topology, base_dir: Path
) -> KeyFaults:
    if faults := _expert_faults(model_of(spec, base_dir), mesh, (*path, "ep")):
        return faults
    try:
        one = replica_of(spec, mesh, topology, base_dir).model
    except CommsimError as error:
        return [(path, str(error))]
    heads, n = one.heads, topology.world_size
    gpus = f"found tp * pp * attention_dp = {mesh.tp} * {mesh.pp} * {mesh.attention_dp} = {mesh.gpus}"
    return failing(
        (mesh.gpus > n, path, f"{gpus}, expected at most {n}, the GPUs of the machine"),
        (bool(heads % mesh.tp), (*path, "tp"), f"found tp {mesh.tp}, expected a divisor of {heads}, the heads"),
        (mesh.pp > one.layers, (*path, "pp"), f"found pp {mesh.pp}, expected at most {one.layers}, the layers"),
        (mesh.ep > 1 and one.moe is None, (*path, "ep"), f"found ep {mesh.ep}, but {one.name} has no experts"),
        (
            mesh.attention_dp > 1 and one.moe is None,
            (*path, "attention_dp"),
            f"found attention_dp {mesh.attention_dp}, but {one.name} has no experts to share; replicas are made anyway",
        ),
    )


def _expert_faults(one: Model, mesh: ReplicaMesh, path: tuple[str, ...]) -> KeyFaults:
    """Of experts that are dealt to other ranks than attention has, with what makes these as many."""
    across, ep = mesh.tp * mesh.attention_dp, mesh.ep
    if one.moe is None or across % ep == 0:
        return []
    if ep > one.moe.experts:
        return [(path, f"found ep {ep}, expected at most {one.moe.experts}, the experts of {one.name}")]
    ways = [f"attention_dp {ep // mesh.tp} (--attention-dp {ep // mesh.tp})"] if ep % mesh.tp == 0 else []
    ways += [f"tp {ep} (--tp {ep})"] if one.heads % ep == 0 else []
    add = f"; say {' or '.join(ways)}" if ep > across and ways else ""
    ranks = f"tp * attention_dp = {mesh.tp} * {mesh.attention_dp} = {across}"
    return [(path, f"found ep {ep}, expected a divisor of {ranks}, the ranks that share the experts{add}")]


def _count_faults(spec: GenerationSpec, topology: Topology) -> KeyFaults:
    """Of replicas that the machine does not hold in whole numbers."""
    n, pool, each = topology.world_size, spec.prefill, spec.mesh.gpus
    taken = 0 if pool is None else pool.replicas * pool.mesh.gpus
    left = n - taken
    clients = spec.concurrency or (spec.batch or 0) * max(left // each, 1)
    beside = f", of which {taken} read prompts," if taken else ""
    many = f"found {clients:,} clients, expected at most {MOST_REQUESTS // 2:,}"
    return failing(
        (clients > MOST_REQUESTS // 2, ("concurrency" if spec.concurrency else "batch",), many),
        (
            left < each,
            ("prefill", "replicas") if taken else ("mesh",),
            f"found {n} GPUs{beside} and replicas of {each}, expected one that decodes at least",
        ),
        (
            left >= each and bool(left % each),
            ("mesh",),
            f"found {n} GPUs{beside} and replicas of {each}, which leave {left % each} without work",
        ),
    )
