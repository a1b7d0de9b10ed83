"""A collective over message sizes: a row for each, beside the measured curves of the scenario."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commsim.document import failing
from commsim.document.types import KeyFaults
from commsim.measure.records import Curve
from commsim.nccl.operation import unknown_to
from commsim.nccl.version import parse_version
from commsim.scenario.collective import CollectiveSpec, algorithm_faults, root_faults
from commsim.scenario.setting import Setting
from commsim.scenario.work import Traced, WorkItem, WorkSite
from commsim.units import format_bytes

if TYPE_CHECKING:
    from commsim.scenario.item import Item, Row
    from commsim.scenario.rows import RowPredictor


class CollectiveWork(CollectiveSpec, WorkItem):
    """One collective over message sizes; ``sizes`` are bytes, None to take those of the measured files."""

    kind: ClassVar[str] = "items"
    noun: ClassVar[str] = "a collective"
    libraries: ClassVar[tuple[str, ...]] = (*WorkItem.libraries, "custom_all_reduce", "synthesized")
    compared: ClassVar[bool] = True
    whole_nodes: ClassVar[bool] = True

    def faults(self, setting: Setting) -> KeyFaults:
        """What does not go with the library and the rest of the scenario, each at its key."""
        no_sizes = "found no key 'sizes', expected it, such as '8 B .. 8 GiB x2', unless compare has files"
        faults = failing((self.sizes is None and not setting.compare, (), no_sizes))
        for broken in [size for size in self.sizes or () if size % self.item_bytes][:1]:
            text = f"found {format_bytes(broken)}, expected a multiple of {self.item_bytes} B, one {self.dtype}"
            faults.append((("sizes",), text))
        faults += root_faults(self.root, self.collective)
        if setting.library.name == "none":
            from commsim.collectives import registry

            known = ["auto", *(name for _, name in registry.names(self.collective))]
            text = f"found protocol {self.protocol} with library none, expected it only with library nccl"
            protocol = failing((self.protocol is not None, ("protocol",), text))
            return faults + algorithm_faults(self.algorithm, known) + protocol
        if (name := setting.library.name) != "nccl":
            own = [key for key in ("algorithm", "protocol", "channels") if getattr(self, key) is not None]
            return faults + [((key,), f"found {key} with library {name}, which chooses itself") for key in own]
        return faults + self._nccl_faults(setting)

    def _nccl_faults(self, setting: Setting) -> KeyFaults:
        faults: KeyFaults = []
        if reason := unknown_to(parse_version(setting.library.version), None, self.collective, self.operation):
            key = "redop" if f"no {self.redop}," in reason else "dtype"
            faults.append(((key,), f"found {getattr(self, key)}, but {reason}"))
        if self.algorithm is not None:
            text = (
                f"found algorithm {self.algorithm} with library nccl, which chooses itself; "
                f"expected library none, or NCCL_ALGO: {self.algorithm.title()} in library.env"
            )
            faults.append((("algorithm",), text))
        for key, names in (
            ("protocol", ("NCCL_PROTO",)),
            ("channels", ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")),
        ):
            both = [n for n in names if n in setting.library.env]
            if getattr(self, key) is not None and both:
                faults.append(((key,), f"found {key} here and {both[0]} in library.env, expected one"))
        return faults

    def run(self, site: WorkSite) -> tuple[Item, list[str]]:
        """The predicted rows, and the prediction at exactly the sizes of every measured curve."""
        from commsim.scenario.item import Item
        from commsim.scenario.predictors import row_predictor

        setting, topology = site.setting, site.topology
        predictor = row_predictor(setting, topology, self, site.cache)
        curves = tuple(c for c in site.measured if c.collective == self.collective)
        sizes = self.sizes if self.sizes is not None else _sizes_of(curves)
        shown = site.progress(sizes, f"{setting.name}: {self.collective}") if site.progress else sizes
        # Sizes that a library rounds to one are one row.
        rows = tuple({row.size_bytes: row for row in map(predictor, shown)}.values())
        item = Item(
            name=setting.name,
            collective=self.collective,
            n_ranks=predictor.n_ranks,
            library=setting.library.name,
            mode=setting.mode,
            rows=rows,
            measured=curves,
            at_measured=tuple(self._at_measured(site, curve, predictor, rows) for curve in curves),
            parameters=predictor.provenance,
            use=predictor.use,
            use_bytes=max(sizes, default=0),
            bound=predictor.bound.words(max(sizes)) if site.notes and rows and predictor.n_ranks > 1 else "",
        )
        if setting.library.name == "none" and site.notes and rows:
            from commsim.scenario.ideal import ideal_note

            predictor.warnings.append(ideal_note(site, self, rows[-1]))
        return item, [*predictor.warnings, *predictor.notes_on(rows)]

    def _at_measured(self, site: WorkSite, curve: Curve, predictor: RowPredictor, rows: tuple[Row, ...]) -> Curve:
        """The prediction at the sizes of a measured curve, of its type and reduction where the item states none."""
        from commsim.scenario.predictors import row_predictor

        logged = self.as_logged(curve.dtype, curve.redop)
        known = {row.size_bytes: row for row in rows}
        if site.setting.library.name == "nccl" and not logged.operation.alike(self.operation):
            predictor, known = row_predictor(site.setting, site.topology, logged, site.cache), {}
        at = [known.get(int(size)) or predictor(int(size)) for size in curve.size_bytes]
        return Curve(
            name=site.setting.name,
            collective=curve.collective,
            n_ranks=predictor.n_ranks,
            kind="predicted",
            size_bytes=curve.size_bytes,
            time_s=np.array([row.time_s for row in at]),
            dtype=predictor.work.dtype,
            redop=predictor.work.redop,
        )

    def traced(self, site: WorkSite) -> Traced:
        """The moves of the largest size, simulated by events; of several runs the first."""
        setting, topology = site.setting, site.topology
        if setting.library.name != "none":
            return super().traced(site)
        from commsim.engine.evaluate import evaluate
        from commsim.engine.timeline import timeline
        from commsim.engine.variation import repeated
        from commsim.scenario.raw import RawRows

        if not self.sizes:
            raise site.error((), "found no sizes, expected some to trace the largest")
        rows, size = RawRows(setting, topology, self), max(self.sizes)
        algorithm = rows(size).algorithm
        schedule = rows.schedule(algorithm, size)
        if setting.variation is None:
            outcome = evaluate(schedule, topology, "event", contention=setting.contention)
        else:
            (outcome,) = repeated(schedule, topology, setting.variation.variation, setting.contention, [0])
        title = f"{setting.name}: {algorithm} {self.collective} of {format_bytes(size)} on {topology.world_size} ranks"
        return Traced(timeline(schedule, outcome), title, world_size=topology.world_size)


def _sizes_of(curves: Iterable[Curve]) -> tuple[int, ...]:
    return tuple(sorted({int(size) for curve in curves for size in curve.size_bytes}))
