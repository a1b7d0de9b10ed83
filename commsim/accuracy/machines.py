"""The rule that turns the words of an index row about a machine into a description of its topology.

A row says ``gpu_model``, ``intra_link`` and ``inter_link`` in free words. The GPU and the kind of its links pick a
machine of ``topologies/`` without network; the network is read as "count x rate" and laid on top. What the words leave
open is filled by `_DEFAULT_RATE` and one NIC per GPU. No figure is chosen by looking at the times.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from commsim.errors import TopologyError
from commsim.nccl.environment import PATHS, whole
from commsim.nccl.peer import peer_level
from commsim.nccl.version import Version
from commsim.topology.imported import NDR_BANDWIDTH
from commsim.units import GIGA

_MESH = r"no (?:NV)?Switch|^(?!.*NVSwitch)(?!.*cube)(?!.*hybrid).*(\bdirect\b|\bmesh\b|all-to-all|\b4 ?x [AHV]\d00\b)"
_BOARD = r"NVSwitch|SXM|HGX|DGX|\bNV\d|SHM"  # SHM: how NCCL went, not what there is
_PCIE = (  # words that name PCIe and no board, or deny NVLink, though not only to other nodes
    rf"^(?!.*(?:{_BOARD}|NV-?Link|\bNVL)).*\bPCIe"
    rf"|^(?!.*(?:{_BOARD})).*\b(?:no|without) NVLinks?\b(?! (?:between|across|SHARP|to)\b)"
)
_CARD = r"^(?!.*(?:SXM|HGX|DGX|HBM3\b)).*"  # HBM3 is what H100 SXM have, PCIe cards HBM2e

_BASES: tuple[tuple[str, str, str], ...] = (
    # GPU model, intra-node links, machine; the first match of both wins ("" matches everything).
    (r"GB[23]00", _MESH, "gb200-nvl4"),
    (r"GB300", "", "gb300-nvl72"),
    (r"GB200", "", "gb200-nvl72"),
    (r"GB10\b|DGX Spark", "", "dgx-spark"),
    (r"GH200", "", "gh200x4"),
    (r"\bB300", "", "hgx-b300"),
    (r"\bB200", "", "hgx-b200"),
    (r"\bH[12]00[- ]?NVL|\bH100.*PCIe|PCIe.*\bH100", _PCIE, "h100-pcie"),
    (r"\bH[12]00[- ]?NVL", "", "h100-pcie-bridge"),
    (r"\bH[12]00[- ]?NVL", "", "h100-nvl"),
    (_CARD + r"\bH200", _PCIE, "h100-pcie"),
    (r"\bH200", "", "hgx-h200"),
    (r"\bH20\b", "", "h20"),
    (r"\bH800", "", "h800"),
    (r"\bH100.*PCIe|PCIe.*\bH100", "", "h100-pcie-bridge"),
    (r"\bH100.*PCIe|PCIe.*\bH100", "bridge", "h100-nvl"),
    (r"\bH100.*PCIe|PCIe.*\bH100", "", "h100-pcie"),
    (_CARD + r"\bH100", _PCIE, "h100-pcie"),
    (r"\bH100", _MESH, "hgx-h100-4"),
    (r"\bH100", "", "hgx-h100"),
    (r"\bA800", "", "a800"),
    (r"\bA100.*PCIe|PCIe.*\bA100|\bA30\b", r"(?<!no NVLink )bridge", "a100-pcie-bridge"),
    (r"\bA100.*PCIe|PCIe.*\bA100|\bA30\b", "", "a100-pcie"),
    (_CARD + r"\bA100", _PCIE, "a100-pcie"),
    (r"\bA100", _MESH, "hgx-a100-4"),
    (r"\bA100", "", "dgx-a100"),
    (r"\bV100.*PCIe|PCIe.*\bV100", "", "v100-pcie"),
    (r"\bV100.*PCIe|PCIe.*\bV100", "", "v100-pcie-8"),
    (_CARD + r"\bV100", _PCIE, "v100-pcie"),
    (_CARD + r"\bV100", _PCIE, "v100-pcie-8"),
    (r"\bV100", r"(?<!no )NVSwitch|DGX-2", "dgx-2"),
    (r"\bV100.*SXM3|DGX-2", "", "dgx-2"),
    (r"\bV100", _MESH, "v100-sxm2-4"),
    (r"\bV100|DGX-1\b", "", "dgx-1v"),
    (r"RTX 6000D|RTX PRO 6000", r"ConnectX-?8|CX-?8", "rtx6000d"),
    (r"RTX 50|RTX PRO|RTX 6000D|Blackwell", "", "rtx5090"),
    (r"RTX 40|\bL(40S?|20|4|2)\b|RTX 6000 Ada|\bAda\b", "", "rtx4090"),
    (r"RTX 30|RTX A\d|\bA(10G?|40|16|2)\b|\bA[456]000", "", "rtx3090"),
    (r"RTX 20|TITAN RTX|\bT4G?\b|Quadro RTX", "", "rtx2080ti"),
)

OF_CRAY = {"dgx-a100": "hgx-a100-4", "hgx-h100": "hgx-h100-4"}
"""Boards of the machines with Slingshot, whose nodes hold four GPUs and no NVSwitch (HPE Cray EX)."""

_NETWORKS: tuple[tuple[str, str], ...] = (
    (r"\bTCP\b|10GbE|\bENA\b|\bIPoIB\b|NET/Socket|\(sockets\)", "ethernet"),
    (r"(?:^|\b(?<!spread )over |\b(?:plain|kernel|Ethernet|IP|NCCL) )sockets\b", "ethernet"),
    (r"Slingshot|Cassini|\bCXI\b", "slingshot"),
    (r"\bEFA", "efa"),
    (r"TCPX|FasTrak|GPUDirect-TCP", "tcpx"),
    (r"RoCE|\bgIB\b|Spectrum-X", "roce"),
    (r"InfiniBand|(?:(?<![A-Z])|(?<=\dx))[QEHNXF]DR(?![A-Z])|\bIB\b|Omni", "infiniband"),
    (r"Ethernet|GbE", "ethernet"),
)
_NAMED_RATES = {
    "QDR": 40, "FDR": 56, "EDR": 100, "Omni-?Path": 100, "Slingshot[- ]?10": 100,
    "HDR[- ]?100": 100, "HDR(?:[- ]?200)?": 200,
    "NDR[- ]?200": 200, "NDR(?:[- ]?400)?": 400, "XDR(?:[- ]?800)?": 800,
    "(?:ConnectX-?|CX-?)5": 100, "(?:ConnectX-?|CX-?)6": 200, "(?:ConnectX-?|CX-?)7|BlueField-?3": 400,
    "(?:ConnectX-?|CX-?)8": 800,
}  # fmt: skip
_DEFAULT_RATE = {"volta": 100, "turing": 100, "ampere": 200, "ada": 200, "hopper": 400, "blackwell": 400}
"""Gb/s of a NIC where the row names none: the usual one of the servers of that time."""

_RATE_OF = {"ethernet": 25, "slingshot": 200, "tcpx": 200, "efa_v1": 100}
"""The same of networks that come with one rate, and of sockets: who has more between GPUs goes around the kernel."""

_RATE_OF_BOARD = {"hgx-b300": 800, "gb300-nvl72": 800}
"""The same of boards that hold the NICs: a ConnectX-8 beside each GPU (NVIDIA's descriptions of B300 and GB300)."""

_EC2 = re.compile(r"\b(g4dn|g5|g6e?|p3|p3dn)\.(metal|\d*xlarge)\b", re.I)
_EC2_RATE: dict[str, dict[str, int]] = {
    "g4dn": {"8xlarge": 50, "12xlarge": 50, "16xlarge": 50, "metal": 100},
    "g5": {"xlarge": 10, "2xlarge": 10, "12xlarge": 40, "24xlarge": 50, "48xlarge": 100},
    "g6": {"xlarge": 10, "2xlarge": 10, "12xlarge": 40, "24xlarge": 50, "48xlarge": 100},
    "g6e": {
        "xlarge": 20,
        "2xlarge": 20,
        "4xlarge": 20,
        "12xlarge": 100,
        "16xlarge": 35,
        "24xlarge": 200,
        "48xlarge": 400,
    },
    "p3": {"2xlarge": 10, "8xlarge": 10},
    "p3dn": {"24xlarge": 100},
}
_EC2_USUAL = 25
"""Gb/s of a whole EC2 machine by its name ("Amazon EC2 instance types", accelerated computing), and of the others."""

_EFA_OF_A_NODE = 3200
"""Gb/s of the 32, 16 or 8 devices of P5, P5en and P6-B200 together."""

_EFA_OF_P4D = 400
"""The same of the four of P4d."""

_FASTEST = 800
"""Gb/s that no NIC of today exceeds: a larger rate is that of a node."""

_RATE = re.compile(
    r"(?<![\d.])(\d{1,6}(?:\.\d{1,4})?)\s?(T|G)(?:b(?:it)?/s|bps|bit|bE|(?-i:b\b))|(?<![\d.])(\d{2,4})\s?(G)\b(?!B)",
    re.I,
)
_MEMORY = re.compile(  # of a card in the name of a machine: "h100-80gb", "80gb-a100"
    r"\b(?:G?[VAHLB]\d{1,3}[a-z]?|GB[23]00|T4|RTX ?\d{4})[-_ ]\d{2,3}[-_ ]?G(?:i?B)?(?![a-z/])"
    r"|\b\d{2,3}[-_ ]?G(?:i?B)?[-_ ](?=G?[VAHB]\d{2,3}\b)",
    re.I,
)
_BYTES = re.compile(r"(?<![\d.])(\d{1,6}(?:\.\d{1,4})?)\s?(?:GB/s|GBps|GiB/s)")
_COUNT = re.compile(
    r"(?<![\w.-])(\d{1,3})\s?[x*\u00d7]\s?(?!\d{0,3}\s?GPU)"
    r"|(?<![\w.-])(?<!Gen )(?<!PCIe )(\d{1,2})\s?(?:(?:RDMA|SR-IOV|IB|RoCE|Ethernet|mlx5) ){0,3}"
    r"(?:NICs?|HCAs?|VFs?|rails?|adapters?|ports?|ConnectX-\d|BlueField-\d)\b"
    # a count after what it counts; 16 there is the width of a PCIe slot
    r"|(?:[QEHNXF]DR[- ]?\d{0,3}|Gb/s|Gbps|GbE|\dG|InfiniBand|RoCE|ConnectX-?\d|NIC)"
    r" [x\u00d7]\s?(?!16\b)(\d{1,2})(?=\s*(?:$|[,;()|]))",
    re.I,
)
_COUNT_AND_RATE = re.compile(
    r"(?<![\w.-])\d{1,2}\s?[x*\u00d7]\s?(25|40|50|56|100|200|400|800)(?![\w.]|\s?(?:G|node|port|NIC))", re.I
)
_P2P = r"\b(?:P2P|peer[- ]to[- ]peer)\b"
_NO_PEER = re.compile(
    rf"\b(?:no|without)(?: \w+){{0,2}} {_P2P}(?! (?:problem|issue|over NVLink))"
    rf"|{_P2P}[\s:(-]{{1,2}}(?:(?:is|was|access|between GPUs|over BAR1|driver) ){{0,3}}"
    r"(?:not (?:available|supported|enabled|possible|used)|unavailable|disabled|off\b(?!-))"
    r"|\bdriver\b[^,;.]{0,9}\bnot installed\b|\b(?:only|possible) (?:with|in) (?:a|the) \w+ driver\b",
    re.I,
)
_PEER = re.compile(
    rf"(?<!NVLink ){_P2P}(?:[- ](?:patched|unlocked|enabled|driver)\b| over BAR1\b| between GPUs\b)", re.I
)
_PATCHED = re.compile(
    rf"{_P2P}(?:[- ](?:patched|unlocked|driver)\b| over BAR1\b)|\b(?:patched|modified|hacked) (?:P2P )?driver\b", re.I
)
_STAGED = re.compile(r"\bno (?:GPUDirect|GDR)\b|\b(?:GPUDirect RDMA|GDR) (?:off|disabled)\b", re.I)
_NIC = r"(?:NICs?|HCAs?|network (?:cards?|adapters?)|ConnectX-?\d)"
_ROOT = (
    r"(?:PCI(?:e|-E| Express)? roots?(?: (?:complex(?:es)?|ports?))?|root (?:complex(?:es)?|ports?)|host bridges?"
    r"|sockets?|NUMA (?:nodes?|domains?))\b"
)
_APART = (  # "GPU and NIC on different roots", "the NIC is on another socket than the GPU"; gaps, so time, are bounded
    re.compile(rf"\b(?:GPUs? and {_NIC}|{_NIC} and GPUs?)\b[^.;|]{{1,40}}?\b(?:different|separate) {_ROOT}", re.I),
    re.compile(
        rf"\b{_NIC}\b[^.;|]{{1,40}}?\b(?:another|other|a different) {_ROOT} (?:than|from)[^.;|]{{1,20}}?\bGPUs?\b"
        rf"|\bGPUs?\b[^.;|]{{1,40}}?\b(?:another|other|a different) {_ROOT} (?:than|from)[^.;|]{{1,20}}?\b{_NIC}\b",
        re.I,
    ),
)
_NOT = re.compile(r"\b(?:not|no|never)\b|n't\b", re.I)
_APART_DOMAINS = re.compile(
    r"\b(?:different|separate|several|distinct|two|[2-9]) NVLink domains\b|\bcross[- ]domain\b"
    r"|\bno (?:MNNVL|IMEX|multi-?node NVLink|NVLink (?:between|across))|\bNVLink only (?:with)?in\b"
    r"|\b(?:MNNVL|IMEX)\W{1,3}(?:is |was )?(?:off|disabled|not)\b",
    re.I,
)
_ACROSS_TRAYS = re.compile(r"\bMNNVL\b|\bIMEX\b|\bmulti-?node NVLink\b", re.I)
_OF_NODE = re.compile(  # what follows a rate that all NICs of a node have together
    r"(?:(?!per (?:NIC|GPU|port|rail)|each)[^,;|\d]){0,40}?"
    r"(?:(?:\bper[ -]|/ ?)(?:compute )?(?:node|server|host|instance)\b|\btotal\b|\baggregate\b)",
    re.I,
)
_OF_NODE_BEFORE = re.compile(r"(?:\bper[ -]node|\btotal|\baggregate):? $", re.I)

# us of switch, cable and NIC as in topologies/: Quantum-2, Rosetta, 51.2 Tb/s Ethernet; half a round trip of a NIC.
_LATENCY = {
    "infiniband": (0.15, 0.1, 0.35),
    "roce": (0.6, 0.1, 0.35),
    "slingshot": (0.35, 0.1, 0.45),
    "efa": (0.6, 0.25, 1.0),
    "efa_v1": (0.6, 0.25, 1.0),
    "tcpx": (0.6, 0.25, 1.0),
    "ethernet": (0.6, 0.25, 1.0),
}


@dataclass(frozen=True)
class Wire:
    """The network of a row: kind, NICs of a node, bytes/s of one, and what the row left open."""

    network: str
    nics: int
    bandwidth: float
    notes: tuple[str, ...] = ()
    through_host: bool = False  # what a NIC moves passes the root of a host: no GPUDirect, or no switch in common


def base_machine(gpu_model: str, intra_link: str, gpus_per_node: int = 1) -> str:
    """The machine of ``topologies/`` for a GPU and the links between the GPUs of a node; the first with enough GPUs."""
    found = [n for g, intra, n in _BASES if re.search(g, gpu_model, re.I) and re.search(intra, intra_link, re.I)]
    if found:
        return next((name for name in found if full_node(name) >= gpus_per_node), found[-1])
    raise TopologyError(f"no machine is known for the GPU {gpu_model[:60]!r}; add a case that names a preset")


@lru_cache(maxsize=128)
def full_node(name: str) -> int:
    """GPUs of a whole node of a machine of ``topologies/``."""
    from commsim.topology.presets import preset

    return preset(name).gpus_per_node


def peer_to_peer(intra_link: str) -> bool | None:
    """Whether words say that GPUs may (or may not) write to each other's memory over PCIe; None where they do not say.

    >>> [peer_to_peer(words) for words in ("PCIe, P2P-patched driver", "PCIe, P2P disabled by driver", "PCIe")]
    [True, False, None]
    """
    if _NO_PEER.search(intra_link):
        return False
    return True if _PEER.search(intra_link) else None


def driver_patched(intra_link: str) -> bool:
    """Whether words say that a changed driver lets GPUs write to each other's memory; NCCL is then told to use it."""
    return peer_to_peer(intra_link) is True and bool(_PATCHED.search(intra_link))


def node_parts(name: str, gpus: int, version: Version, env: dict[str, str]) -> int:
    """Into how many equal parts NCCL cuts a node whose GPUs it may not let talk to each other: 1 where they may.

    Without shared memory (NCCL_SHM_DISABLE=1) GPUs that may not write to each other's memory (`peer_level`) reach each
    other through NICs only, and each group is a node (src/graph/paths.cc, ncclTopoTrimSystem). Raises ScenarioError for
    values that NCCL does not know.
    """
    from commsim.topology.presets import load_preset

    if whole(env, "NCCL_SHM_DISABLE") != 1:
        return 1
    topology = load_preset(name, nodes=1, gpus_per_node=gpus)
    level = peer_level(topology, version, env)
    near = [PATHS.index(topology.path_type(0, other)) <= level for other in range(1, gpus)]
    together = 1 + sum(near)
    return gpus // together if all(near[: together - 1]) and gpus % together == 0 else 1


def network_kind(inter_link: str, env: str = "") -> str | None:
    """The network that a row names (`_NETWORKS`); TCP where the environment turns the verbs off. None if neither."""
    if re.search(r"NCCL_IB_DISABLE=1|NCCL_NET=[\"']?Socket|TCP sockets", env, re.I):
        return "ethernet"
    return next((name for pattern, name in _NETWORKS if re.search(pattern, inter_link, re.I)), None)


def one_nvlink_domain(intra_link: str, inter_link: str, env: dict[str, str], *, racks: float) -> bool:
    """Whether NVLink joins the nodes of a row, which then are trays.

    Words that deny it win (and NCCL_MNNVL_ENABLE=0), then those that say it; else it does where no other network is
    named, or where the ranks fill whole racks.
    """
    words = f"{intra_link} | {inter_link}"
    if _APART_DOMAINS.search(words) or env.get("NCCL_MNNVL_ENABLE", "").strip() == "0":
        return False
    if _ACROSS_TRAYS.search(words) or re.search(r"\bNVLink", inter_link, re.I):
        return True
    named = network_kind(inter_link) is not None or _rate(inter_link)[0] is not None
    return not named or racks == int(racks)


def on_another_root(words: str) -> bool:
    """Whether words say that NICs and GPUs are on different PCIe roots, sockets or NUMA nodes."""
    found = (match for pattern in _APART for match in pattern.finditer(words))
    return any(not _NOT.search(match[0]) for match in found)


def wire(
    inter_link: str, env: str, gpus: int, generation: str, *, board: str = "", gpu_model: str = "", apart: bool = False
) -> Wire:
    """The network that the words of a row describe, for a node of `gpus` GPUs of a generation.

    `board`: the machine of ``topologies/``; `gpu_model`: those words, which may name an EC2 machine. `apart`: its NICs
    are on another PCIe root than the GPUs; else they are beside them.

    >>> wire("4x HDR 200Gb/s InfiniBand", "", 8, "ampere")
    Wire(network='infiniband', nics=4, bandwidth=25000000000.0, notes=(), through_host=False)
    """
    assumed = []
    network = network_kind(inter_link, env)
    if network is None:
        network = "ethernet" if _EC2.search(f"{inter_link} {gpu_model}") else "infiniband"
        assumed.append(f"network not named: taken as {network}")
    if network == "efa" and generation in ("volta", "turing", "ampere"):
        network = "efa_v1"  # its second generation came with the instances of Hopper
    nics, (rate, of_node) = _count(inter_link), _rate(inter_link)
    usual = _RATE_OF.get(network, _RATE_OF_BOARD.get(board, _DEFAULT_RATE[generation]))
    instance = _EC2.search(f"{inter_link} {gpu_model}") if network in ("efa", "efa_v1", "ethernet") else None
    if instance:
        whole = _EC2_RATE[instance[1].lower()].get(instance[2].lower(), _EC2_USUAL)
        nics = nics or max(1, whole // (rate or 100))
        if rate is None:
            rate = whole // nics
            assumed.append(f"NIC rate not stated: {instance[0]} has {whole} Gb/s")
    if rate is None:
        devices = nics if network == "efa" and generation in ("hopper", "blackwell") else None
        of_node_efa = _EFA_OF_A_NODE * (2 if board in _RATE_OF_BOARD else 1)  # P6-B300 has twice as much
        rate = of_node_efa // devices if devices in (8, 16, 32) else usual
        assumed.append(f"NIC rate not stated: taken as {rate} Gb/s")
    if network == "efa_v1" and nics is None and generation == "ampere" and gpus == 8:
        rate = max(rate, _EFA_OF_P4D)
    of_node = of_node or rate > _FASTEST or (network == "efa_v1" and nics is None and rate > usual)
    if nics is None:
        nics, why = _usual_count(network, rate, usual, gpus, of_node=of_node)
        assumed.append(f"NIC count not stated: taken as {nics} ({why})")
    if of_node and nics > 1:
        rate = rate // nics
        assumed.append(f"the rate is taken as that of a node: {rate} Gb/s per NIC")
    if "per tray" in inter_link:  # the node is the NVLink domain, a tray holds four of its GPUs
        nics *= max(1, gpus // 4)
    if network == "efa" and nics > gpus and nics % gpus == 0:  # its plugin joins the devices beside one GPU
        nics, rate = gpus, rate * nics // gpus
    far = apart or bool(_STAGED.search(f"{inter_link} {env}"))
    return Wire(network, nics, rate * GIGA / 8, tuple(assumed), far)


def _usual_count(network: str, rate: int, usual: int, gpus: int, *, of_node: bool) -> tuple[int, str]:
    """NICs of a node whose row does not count them, and why; `rate` in Gb/s, `usual` of such a NIC."""
    if network == "ethernet":
        return 1, "sockets of the host"
    if network == "efa_v1" or (of_node and rate < 100 * gpus):
        return max(1, rate // usual), f"of {usual} Gb/s"
    return (gpus, "one per GPU") if rate >= 100 else (1, "a slow network")


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _rate(text: str) -> tuple[int | None, bool]:
    """Gb/s of the first rate that a text states, in bits, by a name, or in bytes; and whether it is that of a node.

    A rate of one NIC goes before that of a node.
    """
    found = [
        (max(1, round(float(match[1] or match[3]) * (1000 if (match[2] or "").upper() == "T" else 1))), *match.span())
        for match in _RATE.finditer(_BYTES.sub(_blank, _MEMORY.sub(_blank, text)))
    ]
    of_nic = next((rate for rate, start, end in found if not _of_node(text, start, end)), None)
    if of_nic is not None:
        return of_nic, False
    named = (
        rate
        for name, rate in _NAMED_RATES.items()
        if re.search(rf"(?:(?<![A-Z])|(?<=\dx))(?:{name})(?!\d)", text, re.I)
    )
    unit = _COUNT_AND_RATE.search(text)
    rate = next(named, int(unit[1]) if unit else None)
    if rate is not None:
        return rate, False
    if found:
        return found[0][0], True
    stated = _BYTES.search(text)
    return (max(1, round(8 * float(stated[1]))), _of_node(text, *stated.span())) if stated else (None, False)


def _of_node(text: str, start: int, end: int) -> bool:
    """Whether the words round a rate say that it is all that a node has."""
    return bool(_OF_NODE.match(text, end) or _OF_NODE_BEFORE.search(text[max(0, start - 16) : start]))


def _count(text: str) -> int | None:
    """NICs of a node: ``8x``, ``8 NICs``; the first number that is not nought."""
    for match in _COUNT.finditer(text):
        found = int(match[1] or match[2] or match[3])
        if found:
            return found
    return 1 if re.search(r"\b(?:one|a single|single) (?:NIC|HCA|port)\b(?! per GPU)", text, re.I) else None


def network_blocks(
    network: str, nics: int | None = None, bandwidth: float | None = None, *, through_host: bool = False
) -> dict[str, object]:
    """The `node` and `fabric` blocks of a topology description that lay a network on a machine."""
    switch, cable, nic = _LATENCY[network]
    node: dict[str, object] = {"latency": f"{nic} us"}
    if nics is not None:
        node["count"] = nics
    if bandwidth is not None:
        node["bandwidth"] = f"{bandwidth:.0f} B/s"
    if through_host:
        node["attach"] = "host"
    fabric = {
        "kind": "rail_fat_tree",
        "network": network,
        "switch_latency": f"{switch} us",
        "cable_latency": f"{cable} us",
        "nodes_per_leaf": 32,
        "oversubscription": 1.0,
    }
    if network == "infiniband" and bandwidth is not None:  # a port of 400 Gb/s is of NDR, whose fabrics do by default
        fabric["adaptive_routing"] = bandwidth >= NDR_BANDWIDTH
    return {"node": {"nic": node}, "fabric": fabric}
