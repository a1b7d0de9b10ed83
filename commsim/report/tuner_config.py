"""A tuning as the file that NCCL's example tuner plugin reads, and as a table.

Format and traps: NCCL plugins/tuner/example (ext-tuner/example before 2.29), plugin.c. First match wins; ``#`` begins a
comment, and a header line would be read as a rule. A call that no rule matches keeps NCCL's algorithm, but the plugin
as it ships gives it one channel (pluginGetCollInfo begins with ``*nChannels = 1``; with 0, NCCL's enqueue.cc takes
its own number). No rule can mend that: one that matches also forces an algorithm, which is wrong at most sizes of
other ranks. So the file has rules for what was measured alone, and says how the plugin has to be built.
"""

from __future__ import annotations

import commsim
from commsim.nccl.version import format_version
from commsim.planner.tune import Rule, Tuning, measure_first
from commsim.units import format_bytes, format_time

_MOST_CHARACTERS = 255  # of a line that plugin.c reads

BUILD = (
    "sed -i 's/[*]nChannels = 1;/*nChannels = 0;/' plugins/tuner/example/plugin.c",
    "cd plugins/tuner/example && make",
)
"""Commands, in NCCL's sources, for a plugin that leaves the channels of what no rule matches to NCCL."""


def tuner_config(t: Tuning) -> str:
    """The file; NCCL_TUNER_CONFIG_FILE names it, NCCL_TUNER_PLUGIN the plugin."""
    lines = [
        f"# commsim {commsim.__version__}: {t.topology}, {t.nodes} x {t.ranks // t.nodes} ranks, "
        f"NCCL {format_version(t.version)}",
        "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff",
        "# Rules for such ranks only. What no rule matches is left to NCCL by a plugin that is built so:",
        *(f"#   {line}" for line in BUILD),
        "# As it ships, the plugin gives such calls, those of other communicators too, ONE channel. Do not use it so.",
        *(f"# {line}" for line in _operations(t)),
    ]
    for rule in t.rules:
        lines.append(f"# x{rule.gain:.2f} predicted at {format_bytes(rule.gain_at)}, instead of {rule.nccl}")
        lines.append(_line(rule, t.nodes, t.ranks))
    assert all(len(line) <= _MOST_CHARACTERS for line in lines)
    return "\n".join(lines) + "\n"


def _operations(t: Tuning) -> list[str]:
    """What the rules were found for, and what it leaves out."""
    kinds: dict[str, list[str]] = {}
    for collective, operation in t.operations:
        kinds.setdefault(str(operation), []).append(collective)
    return [*(f"{', '.join(names)}: {kind}" for kind, names in kinds.items()), *t.left_out]


def _line(rule: Rule, nodes: int, ranks: int) -> str:
    name = rule.collective.replace("_", "")
    return (
        f"{name},{rule.low},{rule.high},{rule.algorithm},{rule.protocol.lower()},{rule.channels},{nodes},{ranks},-1,-1"
    )


def _end(rule: Rule) -> str:
    """The end of a rule: a size that it still holds, or the next one, which it does not."""
    return format_bytes(rule.high + rule.high % 2)


def tuning_table(t: Tuning) -> str:
    """The rules that gain, the largest gain of each, and how many gains the band swallowed; ends with a newline."""
    lines = [
        f"# {len(t.rules)} rules differ from what NCCL {format_version(t.version)} chooses itself, "
        f"for {t.nodes} x {t.ranks // t.nodes} ranks only",
        *(f"# {line}" for line in _operations(t)),
        f"# {'collective':<15} {'from':>10} {'to':>10}  {'choice':<18} {'NCCL':<18} {'gain':>6}  at",
    ]
    for r in t.rules:
        quick, slow = (format_time(float(f"{seconds:.3g}")) for seconds in (r.time_s, r.nccl_s))
        choice = f"{r.algorithm}/{r.protocol}"
        lines.append(
            f"  {r.collective:<15} {format_bytes(r.low):>10} {_end(r):>10}  {choice:<18} {r.nccl:<18} x{r.gain:>5.2f}  "
            f"{format_bytes(r.gain_at)}: {quick} instead of {slow}"
        )
    if t.unmeasured:
        lines.append(f"# {len(t.unmeasured)} gains are of collectives that were not measured here: measure this first")
        lines += [f"#   {line}" for line in measure_first(t)]
    if t.refused:
        most = max(r.gain for r in t.refused)
        lines.append(
            f"# {len(t.refused)} smaller gains (up to x{most:.2f}) are inside the error band (up to x{t.band:.2f}): "
            "NCCL's own choice stays"
        )
    if t.off:
        lines.append(f"# {t.off} gains are at sizes where the fit does not agree with the log: no rule")
    lines += ["# build the plugin so, or every call that no rule matches runs on one channel:"]
    lines += [f"#   {line}" for line in BUILD]
    return "\n".join(lines) + "\n"
