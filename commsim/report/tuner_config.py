"""A tuning as the file that NCCL's example tuner plugin reads, and as a table.

Format and traps: NCCL plugins/tuner/example (ext-tuner/example before 2.29), plugin.c. First match wins; ``#`` begins a
comment, and a header line would be read as a rule. A call that no rule matches runs on one channel, so every collective
and size has a rule with explicit channels, and a last one for communicators of other shapes.
"""

from __future__ import annotations

import commsim
from commsim.nccl.environment import FUNCTIONS
from commsim.nccl.version import format_version
from commsim.planner.tune import LARGEST, Rule, Tuning, measure_first
from commsim.units import format_bytes, format_time

_MOST_CHARACTERS = 255  # of a line that plugin.c reads


def tuner_config(t: Tuning) -> str:
    """The file; NCCL_TUNER_CONFIG_FILE names it, NCCL_TUNER_PLUGIN the plugin."""
    lines = [
        f"# commsim {commsim.__version__}: {t.topology}, {t.nodes} x {t.ranks // t.nodes} ranks, "
        f"NCCL {format_version(t.version)}",
        "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff",
        "# Every line is needed: NCCL's example plugin runs a call that no rule matches on ONE channel.",
        "# Communicators of other shapes fall to the last lines; write a file for their shape where they matter.",
        *(f"# {line}" for line in _operations(t)),
        "# A call of another type or reduction, for which NCCL has not the algorithm of its line, falls to them too.",
    ]
    for rule in t.rules:
        if rule.gain > 1.0:
            lines.append(f"# x{rule.gain:.2f} predicted at {format_bytes(rule.gain_at)}, instead of {rule.nccl}")
        lines.append(_line(rule, t.nodes, t.ranks))
    lines.append("# any other communicator")
    lines += [_line(Rule(c, 0, LARGEST, "ring", "Simple", t.channels), -1, -1) for c in FUNCTIONS]
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


def tuning_table(t: Tuning) -> str:
    """The rules that gain, the largest gain of each, and how many gains the band swallowed; ends with a newline."""
    lines = [
        f"# {len(t.gaining)} of {len(t.rules)} rules differ from what NCCL {format_version(t.version)} chooses itself",
        *(f"# {line}" for line in _operations(t)),
        f"# {'collective':<15} {'from':>10} {'to':>10}  {'choice':<18} {'NCCL':<18} {'gain':>6}  at",
    ]
    for r in t.gaining:
        to = "any size" if r.high == LARGEST else format_bytes(r.high + 1)
        quick, slow = (format_time(float(f"{seconds:.3g}")) for seconds in (r.time_s, r.nccl_s))
        choice = f"{r.algorithm}/{r.protocol}"
        lines.append(
            f"  {r.collective:<15} {format_bytes(r.low):>10} {to:>10}  {choice:<18} {r.nccl:<18} x{r.gain:>5.2f}  "
            f"{format_bytes(r.gain_at)}: {quick} instead of {slow}"
        )
    if t.unmeasured:
        lines.append(f"# {len(t.unmeasured)} gains are of collectives that were not measured here: measure this first")
        lines += [f"#   {line}" for line in measure_first(t)]
    if t.refused:
        most = max(r.gain for r in t.refused)
        lines.append(
            f"# {len(t.refused)} smaller gains (up to x{most:.2f}) are inside the error band (up to x{t.band:.2f}): "
            "NCCL's own choice is written"
        )
    return "\n".join(lines) + "\n"
