"""Traffic of every algorithm in closed form, and the table of the documentation."""

from __future__ import annotations

from typing import NamedTuple, Unpack

from commsim.collectives import registry
from commsim.collectives import traffic_forms as f
from commsim.collectives import traffic_switches as sw
from commsim.collectives.check import require_slots
from commsim.collectives.grid import usual_node
from commsim.collectives.recursive import halving_partners
from commsim.collectives.semantics import RING_PASSES
from commsim.collectives.sharp import SwitchTree
from commsim.collectives.swing import swing_partners
from commsim.collectives.traffic_forms import Form, Int64, Participants, each
from commsim.errors import ScheduleError
from commsim.memory import require_memory


class Traffic(NamedTuple):
    """A closed form; ``rank`` says what a rank sends, ``total`` what all endpoints send, both in units of nbytes.

    ``total`` is an expression in the letters that ``page`` explains; ``some`` is 0 for one rank and 1 for more.
    """

    form: Form
    rank: str
    total: str


def traffic(
    collective: str,
    algorithm: str,
    world_size: int,
    nbytes: int,
    root: int = 0,
    *,
    ranks_per_node: int | None = None,
    switches: SwitchTree | None = None,
) -> tuple[Int64, Int64]:
    """Bytes that each endpoint sends and receives, (endpoints,) each, whatever the channels and pieces.

    A ScheduleError names the parts when the array cannot be cut into them equally; for all_to_all_v all counts
    are taken to be equal.

    >>> traffic("all_reduce", "ring", 4, 4096)[0]
    array([6144, 6144, 6144, 6144])
    >>> traffic("all_reduce", "parameter_server", 4, 100)[1]   # the server is endpoint 4
    array([100, 100, 100, 100, 400])
    """
    parts, sent, received = units(
        collective, algorithm, world_size, root, ranks_per_node=ranks_per_node, switches=switches
    )
    if nbytes % parts:
        raise ScheduleError(
            f"traffic of {algorithm} {collective} is known for arrays of {parts} equal parts, found {nbytes} bytes"
        )
    return sent * (nbytes // parts), received * (nbytes // parts)


def units(
    collective: str,
    algorithm: str,
    world_size: int,
    root: int = 0,
    *,
    ranks_per_node: int | None = None,
    switches: SwitchTree | None = None,
) -> f.Units:
    """The closed form in units of nbytes / parts; ``switches``: as in `registry.build`."""
    entry = registry.entry(collective, algorithm)
    reason = entry.applicable(world_size, ranks_per_node)
    if reason is not None:
        raise ScheduleError(f"{algorithm} {collective} is not applicable: {reason}")
    name = registry.canonical(collective, algorithm)
    # NCCL's tree has one rank per node unless told otherwise, as its builder.
    usual = 1 if name == "tree" else usual_node(world_size)
    node = usual if ranks_per_node is None else ranks_per_node
    return FORMS[collective, name].form(Participants(world_size, root, node, switches))


def row_count(
    collective: str, algorithm: str, world_size: int, *, switches: SwitchTree | None = None, **cut: Unpack[registry.Cut]
) -> int:
    """Rows of the schedule that `registry.build` would build, by arithmetic; ``switches``: as there.

    A row moves one of the parts that the closed form counts in, or the piece of a part that a channel has. Only
    all_to_all also has a row for the block that a rank keeps.

    >>> row_count("all_reduce", "ring", 20_000)
    799960000
    """
    parts = units(collective, algorithm, world_size, ranks_per_node=cut.get("ranks_per_node"), switches=switches)
    kept = world_size if collective == "all_to_all" else 0
    return (int(parts.sent.sum()) + kept) * cut.get("channels", 1) * cut.get("chunks", 1)


_RINGS = frozenset({"ring", "ring_stepwise"})
_BUILD_BYTES_PER_ROW, _RING_BYTES_PER_ROW = 290, 80
"""Peak bytes above the idle process while a schedule is built and counted, measured with half a million to five million
rows: 284 at most over all algorithms, 79 of rings, which are laid out without sorting."""


def require_rows(
    collective: str,
    algorithm: str,
    world_size: int,
    *,
    more_bytes: int = 0,
    proof: bool = False,
    **cut: Unpack[registry.Cut],
) -> None:
    """Raise MemoryLimitError for a schedule that is too large to be built, or too large for its ``proof``.

    ``more_bytes``: of each row for what follows. What `registry.build` itself refuses is left to it.
    """
    name = f"{algorithm} {collective}"
    ring = algorithm in _RINGS and collective in {"all_reduce", *RING_PASSES}
    each = (_RING_BYTES_PER_ROW if ring else _BUILD_BYTES_PER_ROW) + more_bytes
    if min(world_size, cut.get("channels", 1), cut.get("chunks", 1)) < 1:
        return
    if registry.entry(collective, algorithm).applicable(world_size, cut.get("ranks_per_node")):
        return

    def require(rows: int) -> None:
        subject = f"{name} on {world_size:,} ranks, a schedule"
        require_memory(rows * each, rows, subject=subject, advice="take fewer ranks, channels or chunks")

    require(world_size - 1)  # every rank sends or receives; the form has a number of each
    require(row_count(collective, algorithm, world_size, **cut))
    if proof:
        form = units(collective, algorithm, world_size, ranks_per_node=cut.get("ranks_per_node"))
        chunks = form.parts * cut.get("channels", 1) * cut.get("chunks", 1)
        require_slots(name, world_size, form.sent.size, chunks)


_chain = f.both(f.chain_reduce, f.chain_broadcast)
_binomial = f.both(f.back(f.knomial_broadcast(2)), f.knomial_broadcast(2))
_knomial = f.both(f.back(f.knomial_broadcast(4)), f.knomial_broadcast(4))
_flat = f.both(f.back(f.flat_broadcast), f.flat_broadcast)
_half = each(lambda at: at.n - 1)
_whole = each(lambda at: 2 * (at.n - 1))
_halving = f.swap_reduce_scatter(halving_partners)
_swing = f.swap_reduce_scatter(swing_partners)
_ring = "(n-1)/n"
_twice = "2(n-1)/n"
_folded = "1 more when a rank is folded into it"


def _torus(dims: int, halves: int) -> Form:
    return each(lambda at: halves * 2 * dims * (at.n - 1), lambda at: 2 * dims * at.n)


FORMS: dict[tuple[str, str], Traffic] = {
    ("all_reduce", "ring"): Traffic(_whole, _twice, "2*(n-1)"),
    ("all_reduce", "tree"): Traffic(f.tree_all_reduce, "1/2 per neighbour in each tree", "2*(n-1)"),
    ("all_reduce", "chain"): Traffic(_chain, "2; ends of the chain 1", "2*(n-1)"),
    ("all_reduce", "reduce_broadcast"): Traffic(_binomial, "1 + children; root children", "2*(n-1)"),
    ("all_reduce", "knomial"): Traffic(_knomial, "1 + children; root children", "2*(n-1)"),
    ("all_reduce", "flat"): Traffic(_flat, "1; root n-1", "2*(n-1)"),
    ("all_reduce", "parameter_server"): Traffic(f.parameter_server, "1; server n", "2*n"),
    ("all_reduce", "recursive_doubling"): Traffic(f.swap_all_reduce, f"log2 p, {_folded}; folded 1", "p*k+2*e"),
    ("all_reduce", "rabenseifner"): Traffic(f.swap_halves_all_reduce, f"2(p-1)/p, {_folded}; folded 1", "2*(n-1)"),
    ("all_reduce", "swing"): Traffic(f.swap_halves_all_reduce, f"2(p-1)/p, {_folded}; folded 1", "2*(n-1)"),
    ("all_reduce", "swing_latency"): Traffic(f.swap_all_reduce, f"log2 p, {_folded}; folded 1", "p*k+2*e"),
    ("all_reduce", "direct_one_shot"): Traffic(each(lambda at: at.n - 1, lambda _: 1), "n-1", "n*(n-1)"),
    ("all_reduce", "direct_two_shot"): Traffic(_whole, _twice, "2*(n-1)"),
    ("all_reduce", "hierarchical"): Traffic(_whole, _twice, "2*(n-1)"),
    ("all_reduce", "hierarchical_3"): Traffic(_whole, _twice, "2*(n-1)"),
    ("all_reduce", "torus_2d"): Traffic(_torus(2, 2), _twice, "2*(n-1)"),
    ("all_reduce", "torus_3d"): Traffic(_torus(3, 2), _twice, "2*(n-1)"),
    ("all_reduce", "nvls"): Traffic(
        f.both(sw.nvls_reduce_scatter, f.back(sw.nvls_reduce_scatter)), "1 + 1/n; switch n + 1", "2*(n+1)"
    ),
    ("all_reduce", "nvls_tree"): Traffic(
        sw.nvls_tree, "1 + 1/g + 1/(2g) per neighbour node in each tree; switches g + 1", "2*n+2*M+2*(M-1)"
    ),
    ("all_reduce", "nvls_one_shot"): Traffic(sw.nvls_one_shot, "1; switch n(n-1)", "n*n"),
    ("all_reduce", "collnet_direct"): Traffic(
        sw.collnet_direct_all_reduce, "2(g-1)/g + 1/g; network switch M", "2*M*(g-1)+2*M"
    ),
    ("all_reduce", "collnet_chain"): Traffic(sw.collnet_chain, "2; end of a chain 1; network switch M", "2*n"),
    ("all_reduce", "sharp"): Traffic(
        sw.sharp_all_reduce, "1; switches children + 1, the top one children", "2*(n+s-1)"
    ),
    ("all_reduce", "ring_stepwise"): Traffic(_whole, _twice, "2*(n-1)"),
    ("reduce_scatter", "ring"): Traffic(_half, _ring, "n-1"),
    ("reduce_scatter", "recursive_halving"): Traffic(_halving, _ring, "n-1"),
    ("reduce_scatter", "swing"): Traffic(_swing, _ring, "n-1"),
    ("reduce_scatter", "bruck"): Traffic(_half, _ring, "n-1"),
    ("reduce_scatter", "direct"): Traffic(_half, _ring, "n-1"),
    ("reduce_scatter", "flat"): Traffic(f.flat_reduce_scatter, "1; root (n-1)/n", "(n-1)*(n+1)/n"),
    ("reduce_scatter", "hierarchical"): Traffic(_half, _ring, "n-1"),
    ("reduce_scatter", "hierarchical_3"): Traffic(_half, _ring, "n-1"),
    ("reduce_scatter", "torus_2d"): Traffic(_torus(2, 1), _ring, "n-1"),
    ("reduce_scatter", "torus_3d"): Traffic(_torus(3, 1), _ring, "n-1"),
    ("reduce_scatter", "nvls"): Traffic(sw.nvls_reduce_scatter, "1; switch 1", "n+1"),
    ("reduce_scatter", "rail_direct"): Traffic(_half, _ring, "n-1"),
    ("reduce_scatter", "nvls_rail_direct"): Traffic(f.back(sw.nvls_rail_ring), "1 + (M-1)/n; switches 1", "2*M-1+n"),
    ("reduce_scatter", "collnet_direct"): Traffic(sw.collnet_direct_reduce_scatter, "1; network switch 1", "n+1"),
    ("reduce_scatter", "pat"): Traffic(_half, _ring, "n-1"),
    ("all_gather", "ring"): Traffic(_half, _ring, "n-1"),
    ("all_gather", "recursive_doubling"): Traffic(f.back(_halving), "(n-1)/n for a power of two", "n-1"),
    ("all_gather", "swing"): Traffic(f.back(_swing), "(n-1)/n for a power of two", "n-1"),
    ("all_gather", "bruck"): Traffic(_half, _ring, "n-1"),
    ("all_gather", "direct"): Traffic(_half, _ring, "n-1"),
    ("all_gather", "flat"): Traffic(f.flat_all_gather, "1/n; root (n-1)^2/n", "n-1"),
    ("all_gather", "hierarchical"): Traffic(_half, _ring, "n-1"),
    ("all_gather", "hierarchical_3"): Traffic(_half, _ring, "n-1"),
    ("all_gather", "torus_2d"): Traffic(_torus(2, 1), _ring, "n-1"),
    ("all_gather", "torus_3d"): Traffic(_torus(3, 1), _ring, "n-1"),
    ("all_gather", "nvls"): Traffic(f.back(sw.nvls_reduce_scatter), "1/n; switch n", "n+1"),
    ("all_gather", "rail_direct"): Traffic(_half, _ring, "n-1"),
    ("all_gather", "nvls_rail_ring"): Traffic(sw.nvls_rail_ring, "(2M-1)/n; switches g", "2*M-1+n"),
    ("all_gather", "collnet_direct"): Traffic(
        f.back(sw.collnet_direct_reduce_scatter), "(g-1)/g + 1/n; network switch M", "n+1"
    ),
    ("all_gather", "pat"): Traffic(_half, _ring, "n-1"),
    ("broadcast", "chain"): Traffic(f.chain_broadcast, "1; the last rank 0", "n-1"),
    ("broadcast", "binomial"): Traffic(f.knomial_broadcast(2), "children", "n-1"),
    ("broadcast", "knomial"): Traffic(f.knomial_broadcast(4), "children", "n-1"),
    ("broadcast", "double_binary_tree"): Traffic(f.double_tree_broadcast, "1/2 per child in each tree", "n-1"),
    ("broadcast", "flat"): Traffic(f.flat_broadcast, "0; root n-1", "n-1"),
    ("broadcast", "scatter_all_gather"): Traffic(
        f.both(f.knomial_scatter(2), _half), "(n-1)/n + ranks below it / n", "(n-1)+H2/n"
    ),
    ("broadcast", "hierarchical"): Traffic(f.hierarchical_broadcast, "children", "n-1"),
    ("broadcast", "sharp"): Traffic(sw.sharp_broadcast, "0; root 1; switches children", "some*(n-1+s)"),
    ("reduce", "chain"): Traffic(f.chain_reduce, "1; root 0", "n-1"),
    ("reduce", "binomial"): Traffic(f.back(f.knomial_broadcast(2)), "1; root 0", "n-1"),
    ("reduce", "knomial"): Traffic(f.back(f.knomial_broadcast(4)), "1; root 0", "n-1"),
    ("reduce", "double_binary_tree"): Traffic(f.back(f.double_tree_broadcast), "1; root 0", "n-1"),
    ("reduce", "flat"): Traffic(f.back(f.flat_broadcast), "1; root 0", "n-1"),
    ("reduce", "reduce_scatter_gather"): Traffic(
        f.both(_halving, f.back(f.knomial_scatter(2))), "(n-1)/n + (ranks below it + 1) / n; root (n-1)/n", "(n-1)+H2/n"
    ),
    ("reduce", "hierarchical"): Traffic(f.back(f.hierarchical_broadcast), "1; root 0", "n-1"),
    ("reduce", "sharp"): Traffic(sw.sharp_reduce, "1; switches 1, those above the root 2, the top one 1", "n+s-1+P"),
    ("scatter", "chain"): Traffic(f.chain_scatter, "ranks after it / n", "(n-1)/2"),
    ("scatter", "binomial"): Traffic(f.knomial_scatter(2), "ranks below it / n", "H2/n"),
    ("scatter", "knomial"): Traffic(f.knomial_scatter(4), "ranks below it / n", "H4/n"),
    ("scatter", "flat"): Traffic(f.flat_scatter, "0; root (n-1)/n", "(n-1)/n"),
    ("gather", "chain"): Traffic(f.back(f.chain_scatter), "(ranks after it + 1) / n; root 0", "(n-1)/2"),
    ("gather", "binomial"): Traffic(f.back(f.knomial_scatter(2)), "(ranks below it + 1) / n; root 0", "H2/n"),
    ("gather", "knomial"): Traffic(f.back(f.knomial_scatter(4)), "(ranks below it + 1) / n; root 0", "H4/n"),
    ("gather", "flat"): Traffic(f.back(f.flat_scatter), "1/n; root 0", "(n-1)/n"),
    ("all_to_all", "pairwise"): Traffic(_half, _ring, "n-1"),
    ("all_to_all", "direct"): Traffic(_half, _ring, "n-1"),
    ("all_to_all", "ring"): Traffic(each(lambda at: at.n * (at.n - 1) // 2), "(n-1)/2", "n*(n-1)/2"),
    ("all_to_all", "bruck"): Traffic(each(lambda at: f.bits_below(at.n)), "B/n, about (log2 n)/2", "B"),
    ("all_to_all", "hierarchical"): Traffic(each(f.rails), "(g-1)/g + (M-1)/M", "M*(g-1)+g*(M-1)"),
    ("all_to_all_v", "pairwise"): Traffic(
        each(lambda at: at.n - 1, lambda at: at.n**2), "its row but the own block", "(n-1)/n"
    ),
    ("all_to_all_v", "direct"): Traffic(
        each(lambda at: at.n - 1, lambda at: at.n**2), "its row but the own block", "(n-1)/n"
    ),
    ("all_to_all_v", "hierarchical"): Traffic(
        each(f.rails, lambda at: at.n**2), "as all_to_all, of nbytes / n", "((g-1)*M+g*(M-1))/n"
    ),
    ("send_recv", "direct"): Traffic(each(lambda at: int(at.n > 1), lambda _: 1), "1", "some*n"),
    ("barrier", "dissemination"): Traffic(each(lambda at: (at.n - 1).bit_length(), lambda _: 1), "ceil(log2 n)", "n*L"),
    ("barrier", "recursive_doubling"): Traffic(f.swap_all_reduce, f"log2 p, {_folded}; folded 1", "p*k+2*e"),
    ("barrier", "binomial"): Traffic(_binomial, "1 + children; root children", "2*(n-1)"),
    ("barrier", "flat"): Traffic(_flat, "1; root n-1", "2*(n-1)"),
    ("barrier", "ring"): Traffic(_chain, "2; ends of the chain 1", "2*(n-1)"),
    ("barrier", "sharp"): Traffic(sw.sharp_all_reduce, "1; switches children + 1, the top one children", "2*(n+s-1)"),
}


def page() -> str:
    """The page of the documentation: all closed forms, and beside them the numbers of 8 ranks in 2 nodes of 4."""
    lines = [
        "# Traffic of every algorithm",
        "",
        "Payload bytes in units of the message size (`nbytes`, the *size* column of nccl-tests), without protocol",
        "overhead and without copies within a rank. They do not depend on channels and pieces. Tests compare each",
        "form with the rows of the schedule, exactly and per rank, for every rank count, root and node size;",
        "`commsim.collectives.traffic.traffic` gives the numbers. Blocks are taken to be equal.",
        "",
        "`n` ranks, `M` nodes of `g` ranks, `p` the largest power of two up to `n`, `e = n - p` ranks folded away,",
        "`k = log2 p`, `L = ceil(log2 n)`, `B` the set bits of all numbers below `n`, `s` switches, `P` their levels,",
        "`H2` and `H4` the ranks below all ranks in a binomial and in a 4-nomial tree, added up.",
        "",
        "| collective | algorithm | one rank sends | all send | 8 ranks: most, all |",
        "| --- | --- | --- | --- | --- |",
    ]
    for (collective, algorithm), form in FORMS.items():
        node = 4 if "ranks_per_node" in registry.entry(collective, algorithm).takes else None
        parts, sent, _ = units(collective, algorithm, 8, ranks_per_node=node)
        numbers = f"{sent[:8].max() / parts:g}, {sent.sum() / parts:g}"
        total = form.total.replace("some*", "").replace("*", " ")
        lines.append(f"| {collective} | {algorithm} | {form.rank} | {total} | {numbers} |")
    return "\n".join(lines) + "\n"
