"""Options that several commands have, one by one or as the fields of a dataclass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
OnlyJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]


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


@dataclass(frozen=True)
class GenerateOptions:
    """A machine and requests for a model that is named in place of a scenario."""

    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="MACHINE",
            help="A preset or topology file on which the model that stands in place of a scenario answers requests.",
        ),
    ] = None
    generate: Annotated[
        str | None,
        typer.Option(metavar="IN:OUT", help="With --on: tokens in and out (default: 1024:1024)."),
    ] = None
    range_ratio: Annotated[
        float | None,
        typer.Option(help="With --on: lengths are drawn evenly, from that part of IN and OUT up (default: 1)."),
    ] = None
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="With --on: requests that each replica has at once (default: 1, unless --rate)."),
    ] = None
    rate: Annotated[float | None, typer.Option(help="With --on: requests a second, in place of --batch.")] = None
    requests: Annotated[
        int | None, typer.Option(min=1, help="With --on: how many (default: ten for each at once, or 1000).")
    ] = None
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", min=1, help="With --on: nodes (default: as one replica needs).")
    ] = None
    tp: Annotated[int | None, typer.Option(min=1, help="With --on: tensor parallel ranks (default: 1).")] = None
    pp: Annotated[int | None, typer.Option(min=1, help="With --on: pipeline stages (default: 1).")] = None
    ep: Annotated[int | None, typer.Option(min=1, help="With --on: expert parallel ranks (default: 1).")] = None
    attention_dp: Annotated[
        int | None, typer.Option(min=1, help="With --on: groups with sequences of their own in attention (default: 1).")
    ] = None
    framework: Annotated[
        str | None, typer.Option(help="With --on: vllm, sglang, tensorrt_llm or hf (default: vllm).")
    ] = None
    precision: Annotated[
        str | None, typer.Option(help="With --on: bf16, fp8, fp8_block, nvfp4, int4 ... (default: bf16).")
    ] = None

    @property
    def given(self) -> list[str]:
        """The options that were given, as they are written."""
        return [f"--{f.name.replace('_', '-')}" for f in fields(self) if getattr(self, f.name) is not None]


def changes(text: str) -> Any:
    """The argument for overrides."""
    return typer.Argument(help=text, metavar="[KEY=VALUE]...")


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
