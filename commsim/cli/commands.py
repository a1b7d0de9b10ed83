"""The commands by name: ``--help`` lists them without importing them, and a command is imported when it is called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr
from importlib import import_module
from typing import Any

import typer.main
from typer.core import TyperGroup

from commsim.cli.say import Muted

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
    "init": ("init:init", "Ask what is to be predicted, and write it as a scenario."),
    "schema": ("schema:schema", "Print the JSON Schema of scenario, sweep or plan files."),
    "tune": ("tune:tune", "Write NCCL tuner rules for a topology."),
    "topo": ("topo:app", "List, show, draw and check topologies."),
    "validate": ("validate:app", "Score the model against folders of measured curves."),
    "schedule": ("schedule:app", "List, show, draw, prove, import and export schedules of collectives."),
    "help": ("help_command:help_command", "Show the help of a command."),
}
"""By name: the module of `commsim.cli` and its function or group, and one line of help."""

GROUPS = {
    "Ask": ("run", "cost", "explain", "plan", "sweep", "merge", "synthesize", "tune"),
    "Judge": ("compare", "validate", "doctor", "dump"),
    "Measure": ("measure", "gpu", "rates", "calibrate"),
    "Look": ("explore", "topo", "schedule", "plot"),
    "Maintain": ("init", "schema", "help"),
}
"""The commands as ``--help`` lists them: by what one wants."""


EXAMPLES: dict[str, tuple[str, str]] = {
    "run": (
        "all_reduce --on hgx-h100-ndr400 -n 4 -b 8 -e 8G -f 2",
        "llama-3-70b --on hgx-h100-ndr400 -n 64 --tp 8 --pp 4",
    ),
    "cost": (
        "all_reduce 64MiB 1GiB --on hgx-h100-ndr400 -n 16",
        "all_gather --on hgx-h100-ndr400 --out all_gather.json",
    ),
    "explain": (
        "all_reduce --on hgx-h100-ndr400 -n 4 -b 1G -e 1G",
        "all_reduce --on hgx-h100-ndr400 -n 4 'topology.faults=[{nic: [1, 0], failed: true}]'",
    ),
    "plan": ("llama-33b --on dgx-a100-hdr200 -n 8 --tokens 300B", "plan/gpt3-175b-1024-a100 plan.best=5 --html"),
    "sweep": ("all_reduce --on hgx-h100-ndr400 'topology.nodes=1..64 x2'", "sweep/message-size -j 4"),
    "merge": ("out/message-size", "out/message-size --parquet"),
    "synthesize": (
        "dgx-1v -c all_gather --bytes 1GiB",
        "dgx-a100-hdr200 -n 2 -c all_reduce --plot front.png",
    ),
    "tune": ("allreduce-2-nodes-a100 -o nccl_tuner.conf", "custom-all-reduce --kernels"),
    "init": ("", "mine.yaml --yes --subject llama-3-70b --on hgx-h100-ndr400"),
    "compare": ("all_reduce.log", "all_reduce.log --on hgx-h100-ndr400 --fail-on slower,wrong"),
    "validate collectives": ("--only 'h100x8_*'", "my-logs/ --html errors.html"),
    "validate terms": ("", "--only 'h100x8_*'"),
    "validate degraded": ("", "--pairs pairs.csv"),
    "validate kernels": ("", "--data rows.csv --json figures.json"),
    "validate generation": ("--mode leave-gpu", "--runs runs.csv"),
    "validate training": ("--engine closed_form", "--steps steps.csv --html errors.html"),
    "doctor": ("pairs/*.log --out out/doctor", "cluster.yaml --plan rounds --launcher slurm"),
    "dump": ("nccl_trace_rank_*", "traces/ --on hgx-h100-ndr400 --out out/"),
    "measure": ("gloo-quickstart --nproc 4 --out out/m", "allreduce-8-h100 --backend nccl --capture-choices"),
    "gpu": ("--minutes 10 --out lab", "--only collectives,rates"),
    "rates": ("--device cpu", "--device cuda --out out/rates"),
    "calibrate": ("gloo-quickstart out/m -o params.yaml", "allreduce-8-h100 --from 8B=23us,plateau=361GB/s"),
    "explore": ("", "all_reduce --on hgx-h100-ndr400 -n 4"),
    "topo list": ("", "--json"),
    "topo show": ("hgx-h100-ndr400 -n 4", "dgx-1v --json"),
    "topo draw": ("hgx-h100-ndr400 -n 4 -o machine.png", "my-machine.yaml -o machine.svg"),
    "topo check": ("hgx-h100-ndr400 -n 64", "my-machine.yaml"),
    "topo import": ("topo.xml -o my-machine.yaml", "topo-m.txt --nic-bandwidth '400 Gb/s' -o my-machine.yaml"),
    "topo new": ("my-machine.yaml", "my-machine.yaml --yes --gpu H100 --nics 4"),
    "schedule list": ("", "-c all_gather"),
    "schedule show": ("ring -c all_reduce -n 4", "schedule.xml --full"),
    "schedule draw": ("ring -c all_reduce -n 8 -o ring.svg", "nvls -c all_reduce -n 8 -o nvls.png"),
    "schedule stats": ("rabenseifner -c all_reduce -n 12", "ring -c all_reduce -n 8 --json"),
    "schedule check": ("ring -c all_reduce -n 12", "--all -n 1..8"),
    "schedule import": ("schedule.xml -o ours.json", "schedule.xml -b 64MiB -o ours.json"),
    "schedule export": ("ring -c all_reduce -n 8 -o ring.xml", "tree -c all_reduce -n 16 -o tree.goal"),
    "plot": ("out/quickstart --kind all", "allreduce-2-nodes-a100 --kind crossover --nodes 1,2,4,8 --out map.svg"),
    "schema": ("scenario > scenario.schema.json", "sweep"),
    "help": ("run", "topo new"),
}
"""By the words of a command, what may stand after them."""


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
            _complete(self._commands[name], name)
        return self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _complete(command: Any, words: str) -> None:
    """Gives a command, or all of a group, its examples and the option ``-q``."""
    if hasattr(command, "commands"):
        for name, one in command.commands.items():
            _complete(one, f"{words} {name}")
        return
    lines = [f"  commsim {words} {rest}".rstrip() for rest in EXAMPLES.get(words, ())]
    command.epilog = command.epilog or ("\n".join(["\b", "Examples:", *lines]) if lines else "")
    command.params.append(_quiet())


def _quiet() -> Any:
    """The option ``-q``, made by typer."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command()
    def _(
        quiet: bool = typer.Option(
            False,
            "--quiet",
            "-q",
            is_eager=True,
            expose_value=False,
            callback=hush,
            help="Print the answer and errors only: no notes, no warnings, no progress.",
        ),
    ) -> None:
        del quiet

    return typer.main.get_command(app).params[0]


def hush(context: typer.Context, quiet: bool) -> None:
    """Mutes standard error until the command ends, as ``-q`` asks; errors are told after that."""
    if quiet:
        context.with_resource(redirect_stderr(Muted()))


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

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes every name with its line, under what one wants."""
        del ctx
        lines = dict(self.lines())
        wide = max(map(len, lines))
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{wide}}", lines[name]) for name in names])


def group(text: str) -> typer.Typer:
    """An empty group with a help text, to which its module adds its commands."""
    return typer.Typer(cls=CommandGroup, no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=text)
