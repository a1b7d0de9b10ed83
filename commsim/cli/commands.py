"""The commands by name: ``--help`` lists them without importing them, and a command is imported when it is called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer.main
from typer.core import TyperGroup

COMMANDS = {
    "run": ("run:run", "Predict the time of the collectives in a scenario, and compare with measured curves."),
    "cost": ("cost:app", "Say what one call of a collective costs, and write the table for other programs."),
    "explain": ("explain:explain", "Say what bounds a run, and simulate what each single change would give."),
    "synthesize": (
        "synthesize:synthesize",
        "Find the limit of a collective on a machine, and a schedule that reaches it.",
    ),
    "measure": ("measure:measure", "Run the collectives of a scenario on real ranks."),
    "gpu": ("gpu:gpu", "Measure the GPUs here: curve, choices, rates, steps, calibration and a report."),
    "rates": ("rates:rates", "Measure matrix products, attention, memory copies and launches of one device."),
    "calibrate": ("calibrate:calibrate", "Fit the parameters of NCCL's or gloo's model to measured curves."),
    "compare": ("compare:compare", "Say whether measured curves are as they should be: verdict, cause, sizes."),
    "doctor": ("doctor:doctor", "Say which node, card, link or leaf switch is slow, and which test to run next."),
    "dump": ("dump:dump", "Say what was wrong in a job from its dumps: rank, call and cause, waiting and transfer."),
    "plan": ("plan:plan", "Search every way to cut a model over a machine, and simulate the best."),
    "explore": ("explore:explore", "Ask by moving controls: curve, machine, schedule and step in the browser."),
    "plot": ("plot:plot", "Draw a saved result as PNG and SVG."),
    "sweep": ("sweep:sweep", "Run a scenario over grids of values; run again, it goes on where it was."),
    "merge": ("sweep:merge", "Put the shards of a sweep together."),
    "schema": ("schema:schema", "Print the JSON Schema of scenario, sweep or plan files."),
    "tune": ("tune:tune", "Write NCCL tuner rules for a topology."),
    "topo": ("topo:app", "List, show, draw and check topologies."),
    "validate": ("validate:app", "Score the model against folders of measured curves."),
    "schedule": ("schedule:app", "List, show, draw, prove, import and export schedules of collectives."),
}
"""By name, in the order of ``--help``: the module of `commsim.cli` and its function or group, and one line of help."""


class LazyCommands(Mapping[str, Any]):
    """The commands by name, each imported when it is asked for."""

    def __init__(self) -> None:
        self._commands: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._commands:
            module, attribute = COMMANDS[name][0].split(":")
            function = getattr(import_module(f"commsim.cli.{module}"), attribute)
            app = function
            if not isinstance(function, typer.Typer):
                app = typer.Typer(add_completion=False, rich_markup_mode=None)
                app.command(name)(function)
            self._commands[name] = typer.main.get_command(app)
            self._commands[name].name = name
        return self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class CommandGroup(TyperGroup):
    """Commands whose lines of help stand whole in the list."""

    def lines(self) -> list[tuple[str, str]]:
        """Every name with its line of help."""
        return [(name, command.help or "") for name, command in self.commands.items()]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes every name with its line."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(self.lines())


class Commands(CommandGroup):
    """The group of all commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = LazyCommands()

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the table."""
        del ctx
        return list(COMMANDS)

    def lines(self) -> list[tuple[str, str]]:
        """Those of the table: no command is imported."""
        return [(name, line) for name, (_, line) in COMMANDS.items()]


def group(text: str) -> typer.Typer:
    """An empty group with a help text, to which its module adds its commands."""
    return typer.Typer(cls=CommandGroup, no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=text)
