"""``commsim schedule``: every algorithm of every collective, and schedules in files."""

from __future__ import annotations

from commsim.cli.commands import group
from commsim.cli.schedule.exchange import export, import_command
from commsim.cli.schedule.look import draw, list_command, show, stats
from commsim.cli.schedule.proof import check_command

app = group("List, show, draw, prove, import and export schedules of collectives.")

app.command("list")(list_command)
app.command()(show)
app.command()(draw)
app.command()(stats)
app.command("check")(check_command)
app.command("import")(import_command)
app.command()(export)
