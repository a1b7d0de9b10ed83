"""Nodes written down in a line, as the topology XML that NCCL reads and ``topo import`` too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_CPUS = {
    "intel": ("x86_64", "GenuineIntel"),
    "amd": ("x86_64", "AuthenticAMD"),
    "zhaoxin": ("x86_64", "  Shanghai  "),
    "arm": ("arm64", ""),
    "ibm": ("ppc64", ""),
}
_CUBE = ((0, 3, 2), (0, 4, 2), (0, 1, 1), (0, 2, 1), (1, 2, 2), (1, 5, 2), (1, 3, 1), (2, 3, 1), (2, 6, 1), (3, 7, 1),
         (4, 7, 2), (4, 5, 1), (4, 6, 1), (5, 6, 2), (5, 7, 1), (6, 7, 1))  # fmt: skip
"""Eight GPUs of six links each: (GPU, GPU, links)."""

_SWITCH = 'vendor="0x1" device="0x2" subsystem_vendor="0x1" subsystem_device="0x2"'
_NVSWITCH = "fffe:00:00.0"


@dataclass(frozen=True)
class Node:
    """A node, its fields as the table's columns have them.

    `cpu` is vendor-family-model; GPUs are spread evenly over `sockets`. `switches` GPUs share a PCIe switch, "2/4" of
    them a lower and an upper one, "0" none. `pcie` is GT/s x lanes, no GT/s standing for an empty ``link_speed``; after
    "/" that of cards, and of switches. `nvlink` is a pattern and the links of one pair (or of a GPU with the NVSwitch):
    switch, mesh, ring, pairs, cube (its own numbers), power (all of a socket, and as many to the CPU), c2c (MB/s to the
    CPU, then the links of a pair). `nics` are cards x Gb/s of one port, "*2" for two ports each, kinds of cards joined
    by "+"; card i stands at GPU i * gpus // cards, `place` being switch (beside that GPU), host (under its
    socket) or first (all under the first).
    `ranks` are the ranks of the GPUs in the file, "-" one that is not in use; none: as in the file.
    """

    sm: int
    gpus: int
    cpu: str
    sockets: int
    switches: str
    pcie: str
    nvlink: str
    nics: str
    place: str
    gdr: int = 1
    ranks: str = ""

    @classmethod
    def of(cls, row: Mapping[str, str]) -> Node:
        """The node of a row of the table."""
        return cls(
            int(row["sm"]), int(row["gpus"]), row["cpu"], int(row["sockets"]), row["switches"], row["pcie"],
            row["nvlink"], row["nics"], row["place"], int(row["gdr"]), row["ranks"],
        )  # fmt: skip

    def xml(self) -> str:
        """NCCL's topology XML."""
        lines = ['<system version="1">']
        sizes = [int(size) for size in self.switches.split("/")[::-1] if size != "0"]
        for socket in range(self.sockets):
            own = [g for g in range(self.gpus) if g * self.sockets // self.gpus == socket]
            lines += [self._cpu(socket), *self._below(own, sizes)]
            if self.place == "first":
                lines += self._cards(range(self.gpus)) if socket == 0 else []
            elif self.place == "host" or not sizes:
                lines += self._cards(own)
            lines.append("</cpu>")
        return "\n".join([*lines, "</system>"])

    def _cpu(self, socket: int) -> str:
        vendor, family, model = (*self.cpu.split("-"), "", "")[:3]
        arch, name = _CPUS[vendor]
        numbers = f' familyid="{family}" modelid="{model}"' if family else ""
        return f'<cpu numaid="{socket}" affinity="f" arch="{arch}" vendor="{name}"{numbers}>'

    def _below(self, gpus: list[int], sizes: list[int]) -> list[str]:
        """GPUs under switches of so many, the uppermost first; cards beside them under the lowest."""
        if not sizes:
            return [self._gpu(g) for g in gpus]
        lines, size = [], sizes[0]
        for group in (gpus[i : i + size] for i in range(0, len(gpus), size)):
            inside = self._below(group, sizes[1:])
            if self.place == "switch" and len(sizes) == 1:
                inside += self._cards(group)
            bus = 0x100 * (1 + len(sizes)) + group[0]
            lines += [self._device(bus, "0x060400", _SWITCH, part=2), *inside, "</pci>"]
        return lines

    def _cards(self, gpus: list[int] | range) -> list[str]:
        """The cards that stand at some GPUs."""
        lines, kinds = [], [kind for kind in self.nics.split("+") if kind]
        first = dev = 0
        for kind in kinds:
            count, _, rest = kind.partition("x")
            rate, _, ports = rest.partition("*")
            for card in range(int(count)):
                here = [dev + port for port in range(int(ports or 1))]
                dev += len(here)
                if card * self.gpus // int(count) in gpus:
                    lines.append(self._card(first + card, here, int(rate)))
            first += int(count)
        return lines

    def _card(self, card: int, devs: list[int], rate: int) -> str:
        nets = "".join(
            f'<net name="mlx5_{dev}" dev="{dev}" speed="{rate * 1000}" port="{port + 1}" guid="0x{card + 1:x}"'
            f' maxconn="131072" gdr="{self.gdr}"/>'
            for port, dev in enumerate(devs)
        )
        return f"{self._device(0x600 + card, '0x020000', part=1)}<nic>{nets}</nic></pci>"

    def _device(self, bus: int, kind: str, more: str = "", part: int = 0) -> str:
        parts = self.pcie.split("/")
        rate, _, lanes = parts[min(part, len(parts) - 1)].partition("x")
        speed = f"{float(rate):.1f} GT/s PCIe" if rate else ""
        return f'<pci busid="{_bus(bus)}" class="{kind}" link_speed="{speed}" link_width="{lanes}" {more}>'

    def _gpu(self, gpu: int) -> str:
        links = "".join(
            f'<nvlink target="{target}" count="{count}" tclass="{kind}"/>' for target, count, kind in self._nvlinks(gpu)
        )
        if self.nvlink.startswith("c2c"):
            links += f'<c2c bw="{self.nvlink.split(":")[1]}" count="1"/>'
        rank = (self.ranks.split() or [str(g) for g in range(self.gpus)])[gpu]
        named = "" if rank == "-" else f' rank="{rank}"'
        inside = f'<gpu dev="{gpu}" sm="{self.sm}"{named} gdr="{self.gdr}">{links if named else ""}</gpu>'
        return f"{self._device(gpu, '0x030200')}{inside}</pci>"

    def _nvlinks(self, gpu: int) -> list[tuple[str, int, str]]:
        """(target, links, class of the target) of one GPU."""
        pattern, *numbers = self.nvlink.split(":")
        links, n = int(numbers[-1]) if numbers else 0, self.gpus
        if pattern == "switch":
            return [(_NVSWITCH, links, "0x068000")]
        if pattern == "cube":
            pairs = [(b if a == gpu else a, count) for a, b, count in _CUBE if gpu in (a, b)]
        elif pattern == "power":
            pairs = [(g, links) for g in range(n) if g != gpu and g * self.sockets // n == gpu * self.sockets // n]
        else:
            others = {
                "pairs": [gpu ^ 1],
                "mesh": [g for g in range(n) if g != gpu],
                "c2c": [g for g in range(n) if g != gpu] if len(numbers) > 1 else [],
                "ring": sorted({(gpu - 1) % n, (gpu + 1) % n} - {gpu}),
            }
            pairs = [(g, links) for g in others.get(pattern, [])]
        to_cpu = [(f"ffff:{gpu:02x}:00.0", links, "0x068001")] if pattern == "power" else []
        return [(_bus(g), count, "0x030200") for g, count in pairs] + to_cpu


def _bus(number: int) -> str:
    return f"{0x10 + number:04x}:00:00.0"
