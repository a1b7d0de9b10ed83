"""CPU-seconds of `commsim gpu` on a rehearsed machine: 8 ranks on 2 nodes, all parts, up to 64 KiB.

``python benchmarks/rehearsed_lab.py`` takes some minutes. Parts that compute on the CPU here as long as they may, the
rates, have little time. The bar is 120 s on the machine of `reference`.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from reference import slowness

_ROOT = Path(__file__).resolve().parents[1]
_PARTS = (("collectives,steps,forced,graphs,registered", "14"), ("rates", "0.4"))


def main() -> int:
    """Prints the CPU-seconds of all processes, and how slow the machine was; the exit status is that of the command."""
    sys.path.insert(0, str(_ROOT / "tests"))
    from rehearsal.settings import Settings, environment

    before = slowness()
    with tempfile.TemporaryDirectory() as folder:
        machine = Settings(folder=f"{folder}/machine", gpus=8, ranks_per_node=4)
        env = os.environ | environment(machine) | {"GLOO_SOCKET_IFNAME": "lo"}
        env["PYTHONPATH"] = os.pathsep.join([str(_ROOT), env["PYTHONPATH"]])
        for only, minutes in _PARTS:
            options = ["--out", f"{folder}/lab", "--largest", "64 KiB", "--only", only, "--minutes", minutes]
            status = subprocess.run([sys.executable, "-m", "commsim", "gpu", *options], env=env, check=False).returncode
            if status:
                return status
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            print(f"{only}: {used.ru_utime + used.ru_stime:.0f} s of CPU so far")
    print(f"on a machine {max(before, slowness()):.2f} times as slow as that of the bars")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
