"""What a log of nccl-tests says of its run beside the tables: ranks, hosts, GPUs, launch, versions, network.

From the header of nccl-tests, the command line where a script printed it, and the lines of ``NCCL_DEBUG=INFO``. Nothing
is assumed here; what a log does not say is absent.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from commsim.measure.gpu import version_of
from commsim.measure.records import collective_name
from commsim.nccl.version import format_version

_MOST_RANKS = 10**6
_MOST_VARIABLES = 256

_RANK = re.compile(
    r"Rank\s+(\d{1,8})\s+(?:Group\s+(\d{1,8})\s+)?Pid\s+(\d{1,10})\s+(?:on\s+(\S+)\s+)?device\s+(\d{1,4})\s+"
    r"\[([^\]]*)\]\s*(.*)"
)
_TEST = re.compile(r"Collective test starting:\s*(\w+)")
_COMMAND = re.compile(r"(?:^|[\s/])(\w+_perf)(?:_mpi)?\s+-|(?:^|[\s/])(\w+_perf)(?:_mpi)?\s*\\?$")
_OWN = re.compile(r"# (\w+) on (\d{1,7}) x ")  # as `commsim run --bytes` begins a table
_REGISTER = re.compile(r"_perf(?:_mpi)?\s.*?\s-R\s*([012])\b")
_PROCESSES = re.compile(r"(?:mpirun|mpiexec|srun)\b.*?\s(?:-np|-n|--np|--ntasks)[ =](\d{1,7})\b")
_THREADS = re.compile(r"nThread\s+(\d{1,5})\s+nGpus\s+(\d{1,5})\b")
_NUMBERS = re.compile(r"(warmup iters|agg iters|iters|graph):\s*(\d+)")
_TESTS_VERSION = re.compile(r"nccl-tests version\s+([\w.+-]+)")
_LIBRARY = re.compile(r"nccl-library=(\d{4,6})\b")
_VERSION = re.compile(r"(?:NCCL|RCCL) version\s*:?\s*v?(\d+\.\d+(?:\.\d+)?\S*)")
_ENV = re.compile(r"\b((?:NCCL|RCCL)_[A-Z0-9_]+)(?:=(\S+)| set by environment to ([^\s.]+))")

# Lines of NCCL and of its network plugins (src/transport/net_ib, net_socket; aws-ofi-nccl; Google's FasTrak).
_CARDS = re.compile(r"NET/(IB|Socket)\s*:\s*Using\s+(\[0\].*)")
_CARD = re.compile(r"\[\d+\]\S+?:\d+/(IB|RoCE)\b")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (\w+)(?:.*\(found (\d+) nics\))?")
_USING = re.compile(r"Using network (.+?)\s*$")
_SPEED = re.compile(r"NET/IB\b.*\bspeed=(\d{4,7})\b")  # Mb/s
_INSTANCE = re.compile(r"NET/OFI Running on (\S+) platform")
_COMM = re.compile(r"\bnRanks (\d{1,7}) nNodes (\d{1,7})(?: localRanks (\d{1,5}))?")
_PROVIDERS = {"efa": "efa", "cxi": "slingshot"}
_NETWORKS = {"Socket": "ethernet", "FasTrak": "tcpx", "GPUDirectTCPX": "tcpx", "GPUDirectTCPX_v7": "tcpx"}


class RankLine(NamedTuple):
    """A line of nccl-tests' list of devices."""

    host: str
    pid: str
    group: str
    device: int
    bus: str
    gpu: str


@dataclass
class LogRun:
    """What a log has said so far about the run whose table comes next."""

    test: str | None = None
    command: str | None = None
    processes: int | None = None
    threads: tuple[int, int] | None = None  # of a process, and GPUs of a thread
    ranks: dict[int, RankLine] = field(default_factory=dict)
    conditions: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    net: dict[str, str] = field(default_factory=dict)

    @property
    def collective(self) -> str | None:
        """As the log names it, in our words."""
        return self.test or self.command

    def listen(self, line: str) -> None:
        """Takes what a line between the tables says."""
        if "Rank" in line and (rank := _RANK.search(line)):
            if len(self.ranks) < _MOST_RANKS:
                seen = RankLine(rank[4] or "", rank[3], rank[2] or "0", int(rank[5]), rank[6], rank[7].strip()[:80])
                self.ranks.setdefault(int(rank[1]), seen)
            return
        if "nThread" in line and (match := _THREADS.search(line)):
            self.threads = int(match[1]), int(match[2])
            self.ranks = {}
            for name, value in _NUMBERS.findall(line):
                self.conditions[name.replace(" ", "_")] = value
        if line.startswith("# ") and (match := _OWN.match(line)) and (own := collective_name(match[1])):
            self.test, self.processes, self.threads = own, int(match[2]), (1, 1)
        if "_perf" in line:
            self._command(line)
        if match := _PROCESSES.search(line.partition("_perf")[0]):  # behind it, -n is the number of iterations
            self.processes = int(match[1])
        for pattern, key in ((_TESTS_VERSION, "nccl_tests_version"), (_VERSION, "nccl_version")):
            if match := pattern.search(line):
                self.conditions[key] = match[1]
        if (match := _LIBRARY.search(line)) and "nccl_version" not in self.conditions:
            self.conditions["nccl_version"] = format_version(version_of(int(match[1])))
        if "CCL_" in line and len(self.env) < _MOST_VARIABLES:
            for name, given, quoted in _ENV.findall(line):
                self.env[name] = (given or quoted).strip("\"'")[:200]
        if "NCCL INFO" in line:
            self._info(line)

    def _command(self, line: str) -> None:
        if match := _TEST.search(line):
            self.test = collective_name(match[1].removesuffix("_mpi"))
        elif (match := _COMMAND.search(line)) and "concluded" not in line:
            self.command = collective_name(match[1] or match[2])
            if option := _REGISTER.search(line):
                self.conditions["register"] = option[1]

    def _info(self, line: str) -> None:
        """What NCCL says of its network and its communicator."""
        if match := _SPEED.search(line):
            self.net["nic_gbps"] = f"{int(match[1]) / 1000:g}"
        if match := _CARDS.search(line):
            kinds = Counter(_CARD.findall(match[2])) if match[1] == "IB" else Counter()
            if kinds:
                network = "infiniband" if kinds["IB"] >= kinds["RoCE"] else "roce"
                self.net |= {"network": network, "nics": str(kinds.total())}
            elif match[1] == "Socket":
                self.net.setdefault("network", "ethernet")
        elif match := _PROVIDER.search(line):
            if network := _PROVIDERS.get(match[1], ""):
                self.net |= {"network": network} | ({"nics": match[2]} if match[2] else {})
        elif match := _USING.search(line):
            self.net["net_plugin"] = match[1][:40]
            if network := _NETWORKS.get(match[1], ""):
                self.net["network"] = network
        elif match := _INSTANCE.search(line):
            self.net["instance"] = match[1][:40]
        elif match := _COMM.search(line):
            self.net |= {"comm_ranks": match[1], "n_nodes": match[2]}
            if match[3]:
                self.net["ranks_per_node"] = match[3]

    def n_ranks(self) -> int | None:
        """How many ranks one test ran on; None where the log does not say."""
        if self.ranks:
            groups = {rank.group for rank in self.ranks.values()}
            return max(len(self.ranks), max(self.ranks) + 1) // len(groups)
        if self.threads is not None and self.processes is not None:
            return self.threads[0] * self.threads[1] * self.processes
        return None

    def network(self) -> dict[str, str]:
        """What NCCL said of its network and communicator."""
        return dict(self.net)

    def said(self) -> dict[str, str]:
        """The conditions of the run, by name, in text."""
        conditions = dict(self.conditions)
        if self.env:
            conditions["env"] = " ".join(f"{k}={v}" for k, v in sorted(self.env.items()))
        n_ranks = self.n_ranks()
        if self.threads is not None:
            conditions["threads"], conditions["gpus_per_thread"] = map(str, self.threads)
        if self.ranks:
            models = Counter(rank.gpu for rank in self.ranks.values())
            conditions["gpu_model"] = next(iter(self.ranks.values())).gpu
            if len(models) > 1:
                conditions["gpu_models"] = ", ".join(name for name, _ in models.most_common(4))
            if host := next(iter(self.ranks.values())).host:
                conditions["host"] = host[:80]
        if n_ranks is not None and len(self.ranks) >= n_ranks:
            conditions |= self._whole_list()
        elif n_ranks is not None and self.ranks:
            # The last rank is that of the last device of the last host.
            last = self.ranks[max(self.ranks)].device + 1
            if max(self.ranks) + 1 == n_ranks and n_ranks % last == 0 and last > 1:
                conditions["last_device"] = str(last - 1)
        launch = conditions.get("launch")
        if self.threads is not None and launch in (None, "one_process"):
            threads, each = self.threads
            if threads > 1 and each == 1:
                conditions["launch"] = "thread_per_gpu"
            elif launch is None:
                conditions["launch"] = "process_per_gpu" if each == 1 else "one_process"
        return conditions

    def _whole_list(self) -> dict[str, str]:
        """What a complete list of ranks says of hosts and processes."""
        ranks = list(self.ranks.values())
        per_host = Counter(rank.host for rank in ranks if rank.host)
        said = {"n_nodes": str(max(1, len(per_host)))}
        if len(set(per_host.values())) == 1 or not per_host:
            said["ranks_per_node"] = str(next(iter(per_host.values()), len(ranks)))
        processes = {(rank.host, rank.pid) for rank in ranks}
        said["launch"] = "one_process" if len(processes) == 1 and len(ranks) > 1 else "process_per_gpu"
        if 1 < len(processes) < len(ranks):
            said["launch"] = "process_per_node"
        # A whole bus address names one GPU of a host, unless hosts hide their own (GH200, virtual machines).
        places = {(rank.host, rank.device, rank.bus) for rank in ranks if rank.bus.count(":") > 1}
        if places and len(places) < len(ranks):
            said["shared_gpus"] = f"{len(ranks)} ranks on {len(places)} GPUs"
        return said
