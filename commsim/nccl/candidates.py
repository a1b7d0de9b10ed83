"""What a channel may try next at each place of a node, most promising first (src/graph/search.cc)."""

from __future__ import annotations

from commsim.nccl.paths import NO_PATH
from commsim.nccl.version import Version
from commsim.nccl.view import NodeView

_LOCAL_GPUS_SINCE: Version = (2, 27, 0)
_LOCAL_GPU_FIRST_SINCE: Version = (2, 27, 5)
"""How a version picks the GPU at which a channel enters from a NIC (ncclTopoSearchRecNet)."""


class Candidates:
    """The NICs and GPUs to try in a node, by a version's rules; what is asked again is kept.

    ``turned``: another GPU is tried first for each channel; ``new_orders_only``: an order is either that of the channel
    before, or a new one. ``local_gpu``: the GPU that is given each NIC first.
    """

    def __init__(self, view: NodeView, version: Version) -> None:
        self.view = view
        self.turned = version < _LOCAL_GPUS_SINCE
        self.new_orders_only = version >= _LOCAL_GPU_FIRST_SINCE
        self.local_gpu = [view.local_gpu(n) for n in range(view.nets)]
        self._nets: dict[tuple[int, int], list[int]] = {}
        self._beside: dict[tuple[int, str], list[int]] = {}
        self._nearest: dict[int, set[int]] = {}  # of each NIC the GPUs with the best path from it
        self._followers: dict[tuple[int, int], list[tuple[int, tuple[int, int], int]]] = {}

    def nets(self, gpu: int, farthest: int) -> list[int]:
        """The NICs up to a type of path, nearest first; `gpu` -1 looks from all GPUs."""
        key = (gpu, farthest)
        if key not in self._nets:
            view = self.view
            gpus = range(view.gpus) if gpu == -1 else [gpu]
            nets = [net for g in gpus for net in view.local_nets(g)]
            for kind in range(farthest + 1):
                nets += [net for g in gpus for net, path in enumerate(view.gpu_net[g]) if path.type == kind]
            self._nets[key] = list(dict.fromkeys(nets))
        return self._nets[key]

    def entries(self, net: int, gbps: int, channel: int) -> list[int]:
        """The GPUs at which a channel may enter from a NIC."""
        view, paths = self.view, self.view.net_gpu[net]
        if not self.turned:
            near, own = view.nearest(paths), self.local_gpu[net]
            if not self.new_orders_only or own is None:
                return near
            return [own, *(g for g in near if g != own)]
        if net not in self._nearest:
            scores = [(p.gbps, -len(p.links)) for p in paths]
            self._nearest[net] = {gpu for gpu, score in enumerate(scores) if score == max(scores)}
        gpus = ((channel + i) % view.gpus for i in range(view.gpus))
        return [g for g in gpus if g in self._nearest[net] and paths[g].gbps >= gbps]

    def followers(self, gpu: int, net: int) -> list[tuple[int, tuple[int, int], int]]:
        """All GPUs that can follow one: (GPU, its score inside the node, its score to a NIC), by all but the second."""
        if (gpu, net) not in self._followers:
            view, scores = self.view, []
            for i in range(1, view.gpus):
                there = (gpu + i) % view.gpus
                path, towards = view.gpu_gpu[gpu][there], view.net_gpu[net][there] if net >= 0 else NO_PATH
                if path.links:
                    inside = (-int(path.gbps), len(path.links))
                    scores.append((-int(towards.gbps), len(towards.links), inside, i, there))
            self._followers[gpu, net] = [(there, inside, wide) for wide, _, inside, _, there in sorted(scores)]
        return self._followers[gpu, net]

    def neighbours(self, gpu: int, pattern: str) -> list[int]:
        """Behind an NVSwitch only the next and the previous GPU are tried, as it prefers few peers."""
        key = (gpu, pattern)
        if key not in self._beside:
            before, after = ((gpu + step) % self.view.gpus for step in (-1, 1))
            tried = {"RING": (before, after), "TREE": (after,)}.get(pattern, (after, before))
            free = (there for there in dict.fromkeys(tried) if there != gpu)
            self._beside[key] = [there for there in free if self.view.gpu_gpu[gpu][there].links]
        return self._beside[key]
