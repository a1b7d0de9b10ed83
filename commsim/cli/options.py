"""Options that several commands have, one by one or as the fields of a dataclass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
OnlyJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]


RawBytes = Annotated[
    bool, typer.Option("--bytes", help="Print sizes in bytes, and collectives in the columns of nccl-tests.")
]


def _allow(context: typer.Context, text: str | None) -> str | None:
    """The value as it is; until the command ends it may take so much."""
    if text is not None:
        from commsim.errors import UnitError
        from commsim.memory import allowed
        from commsim.units import parse_bytes

        try:
            nbytes = parse_bytes(text)
        except UnitError as error:
            raise UnitError(f"--memory: {error}") from None
        context.with_resource(allowed(nbytes))
    return text


Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        callback=_allow,
        metavar="SIZE",
        help="What a simulation may take, such as 16GiB (default: half of the free memory); one that needs more is "
        "refused.",
    ),
]
"""The limit holds from the moment that the option is read, so a command only names it."""

Port = Annotated[
    int | None, typer.Option("--port", min=1, max=65535, help="Where rank 0 listens (default: a free port).")
]


def _complete_overrides(incomplete: str) -> list[str]:
    from commsim.cli.complete import overrides

    return overrides(incomplete)


def complete_machines(incomplete: str) -> list[str]:
    """For an option or argument that is a machine."""
    from commsim.cli.complete import presets

    return presets(incomplete)


def complete_scenarios(incomplete: str) -> list[str]:
    """For an argument that is a scenario."""
    from commsim.cli.complete import scenarios

    return scenarios(incomplete)


def complete_subjects(incomplete: str) -> list[str]:
    """For an argument that is a scenario, or with ``--on`` a collective or a model."""
    from commsim.cli.complete import subjects

    return subjects(incomplete)


def complete_collectives(incomplete: str) -> list[str]:
    """For an option or argument that is a collective."""
    from commsim.cli.complete import collectives

    return collectives(incomplete)


def _on(text: str) -> Any:
    """The option that names a machine."""
    return typer.Option("--on", metavar="MACHINE", autocompletion=complete_machines, help=text)


@dataclass(frozen=True)
class AskedOptions:
    """A machine, and what is asked of it for a collective or a model that is named in place of a scenario."""

    on: Annotated[
        str | None,
        _on("A preset or topology file, of which a collective or a model is asked in place of a scenario."),
    ] = None
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", min=1, help="With --on: nodes (default: as the mesh needs, else 1).")
    ] = None
    minbytes: Annotated[
        str | None,
        typer.Option(
            "--minbytes", "-b", metavar="SIZE", help="Collective: first size, as of nccl-tests: 8, 64K (default: 8)."
        ),
    ] = None
    maxbytes: Annotated[
        str | None, typer.Option("--maxbytes", "-e", metavar="SIZE", help="Collective: last size (default: 8G).")
    ] = None
    stepfactor: Annotated[
        int | None, typer.Option("--stepfactor", "-f", help="Collective: from size to size (default: 2).")
    ] = None
    stepbytes: Annotated[
        str | None,
        typer.Option("--stepbytes", "-i", metavar="SIZE", help="Collective: added from size to size, in place of -f."),
    ] = None
    tp: Annotated[int | None, typer.Option(min=1, help="Model: tensor parallel ranks (default: 1).")] = None
    pp: Annotated[int | None, typer.Option(min=1, help="Model: pipeline stages (default: 1).")] = None
    cp: Annotated[int | None, typer.Option(min=1, help="Training: context parallel ranks (default: 1).")] = None
    dp: Annotated[
        int | None, typer.Option(min=1, help="Training: data parallel replicas (default: what the GPUs leave).")
    ] = None
    ep: Annotated[int | None, typer.Option(min=1, help="Model: expert parallel ranks (default: 1).")] = None
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Training: sequences of a step, of all replicas (default: as --micro-batches make). Generation: "
            "requests that each replica has at once (default: 1, unless --rate).",
        ),
    ] = None
    micro_batch: Annotated[
        int | None, typer.Option(min=1, help="Training: sequences of a micro-batch (default: 1).")
    ] = None
    micro_batches: Annotated[
        int | None,
        typer.Option(min=1, help="Training: micro-batches of each replica in a step (default: 4 per pipeline stage)."),
    ] = None
    seq_len: Annotated[
        int | None, typer.Option(min=1, help="Training: tokens of a sequence (default: the model's).")
    ] = None
    zero: Annotated[
        int | None, typer.Option(min=0, max=3, help="Training: ZeRO stage (default: 1 of several replicas).")
    ] = None
    recompute: Annotated[
        str | None, typer.Option(help="Training: none, selective, layerwise or full (default: none).")
    ] = None
    framework: Annotated[
        str | None,
        typer.Option(
            help="Training: megatron (the default), deepspeed, fsdp2, ddp or nanotron. Generation: vllm (the default), "
            "sglang, tensorrt_llm or hf; one of these asks for generation."
        ),
    ] = None
    precision: Annotated[
        str | None, typer.Option(help="Model: bf16, fp8, and of answers fp8_block, int4 ... (default: bf16).")
    ] = None
    generate: Annotated[
        str | None,
        typer.Option(
            metavar="IN:OUT",
            help="The model answers requests of so many tokens in and out, in place of training (default: 1024:1024).",
        ),
    ] = None
    range_ratio: Annotated[
        float | None,
        typer.Option(help="Generation: lengths are drawn evenly, from that part of IN and OUT up (default: 1)."),
    ] = None
    rate: Annotated[float | None, typer.Option(help="Generation: requests a second, in place of --batch.")] = None
    requests: Annotated[
        int | None, typer.Option(min=1, help="Generation: how many (default: ten for each at once, or 1000).")
    ] = None
    attention_dp: Annotated[
        int | None,
        typer.Option(min=1, help="Generation: groups with sequences of their own in attention (default: 1)."),
    ] = None

    tokens: Annotated[
        str | None, typer.Option(help="Training: tokens to train on, such as 300B: hours and GPU-hours.")
    ] = None

    @property
    def given(self) -> list[str]:
        """The names of the options that were given."""
        return [f.name for f in fields(self) if getattr(self, f.name) is not None]


@dataclass(frozen=True)
class PlanOptions:
    """A machine, and how a model that is named in place of a plan file is to be trained on it."""

    on: Annotated[
        str | None,
        _on("A preset or topology file, on which a model is planned in place of a plan file."),
    ] = None
    nodes: Annotated[int | None, typer.Option("--nodes", "-n", min=1, help="With --on: nodes (default: 1).")] = None
    batch: Annotated[
        int | None, typer.Option(min=1, help="With --on: sequences of a step (default: 4 for each GPU).")
    ] = None
    seq_len: Annotated[
        int | None, typer.Option(min=1, help="With --on: tokens of a sequence (default: the model's).")
    ] = None
    precision: Annotated[str | None, typer.Option(help="With --on: bf16, fp8 ... (default: bf16).")] = None
    framework: Annotated[
        str | None, typer.Option(help="With --on: megatron (the default), nemo, fsdp2, torchtitan, deepspeed ...")
    ] = None
    tokens: Annotated[
        str | None, typer.Option(help="With --on: tokens to train on, such as 300B: days and GPU-hours.")
    ] = None

    @property
    def given(self) -> list[str]:
        """The names of the options that were given."""
        return [f.name for f in fields(self) if getattr(self, f.name) is not None]


def changes(text: str) -> Any:
    """The argument for overrides."""
    return typer.Argument(help=text, metavar="[KEY=VALUE]...", autocompletion=_complete_overrides)


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option per field in place of each parameter that is annotated with a dataclass."""
    parameters: list[Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in signature(command, eval_str=True).parameters.values():
        group: Any = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            groups[parameter.name] = group
            parameters += signature(group, eval_str=True).parameters.values()
        else:
            parameters.append(parameter)

    def called(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    called.__signature__ = Signature(  # type: ignore[attr-defined]  # typer reads it
        [p.replace(kind=Parameter.KEYWORD_ONLY) for p in parameters]
    )
    return called
