"""Two examples of every command, with which its help ends."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, str]] = {
    "run": (
        "all_reduce --on hgx-h100-ndr400 -n 4 -b 8 -e 8G -f 2",
        "llama-3-70b --on hgx-h100-ndr400 -n 64 --tp 8 --pp 4",
    ),
    "cost": (
        "all_reduce 64MiB 1GiB --on hgx-h100-ndr400 -n 16",
        "all_gather --on hgx-h100-ndr400 --out all_gather.json",
    ),
    "explain": ("all_reduce --on hgx-h100-ndr400 -n 4 -b 1G -e 1G", "training/llama-3-70b-512-h100 topology.nodes=32"),
    "plan": ("plan/gpt3-175b-1024-a100", "plan/llama-3-405b-16384-h100 plan.best=5 --html"),
    "sweep": ("sweep/message-size", "sweep/message-size 'topology.nodes=1..64 x2' -j 4"),
    "merge": ("out/message-size", "out/message-size --parquet"),
    "synthesize": (
        "dgx-1v -c all_gather --bytes 1GiB",
        "dgx-a100-hdr200 -n 2 -c all_reduce --plot front.png",
    ),
    "tune": ("allreduce-2-nodes-a100 -o nccl_tuner.conf", "custom-all-reduce --kernels"),
    "init": ("", "mine.yaml --yes --subject llama-3-70b --on hgx-h100-ndr400"),
    "compare": ("all_reduce.log", "all_reduce.log --on hgx-h100-ndr400 --fail-on slower,wrong"),
    "validate collectives": ("--only 'h100x8_*'", "my-logs/ --html errors.html"),
    "validate terms": ("", "--only 'h100x8_*'"),
    "validate degraded": ("", "--pairs pairs.csv"),
    "validate kernels": ("", "--data rows.csv --json figures.json"),
    "validate generation": ("--mode leave-gpu", "--runs runs.csv"),
    "validate training": ("--engine closed_form", "--steps steps.csv --html errors.html"),
    "doctor": ("pairs/*.log --out out/doctor", "cluster.yaml --plan rounds --launcher slurm"),
    "dump": ("nccl_trace_rank_*", "traces/ --on hgx-h100-ndr400 --out out/"),
    "measure": ("gloo-quickstart --nproc 4 --out out/m", "allreduce-8-h100 --backend nccl --capture-choices"),
    "gpu": ("--minutes 10 --out lab", "--only collectives,rates"),
    "rates": ("--device cpu", "--device cuda --out out/rates"),
    "calibrate": ("gloo-quickstart out/m -o params.yaml", "allreduce-8-h100 --from 8B=23us,plateau=361GB/s"),
    "topo list": ("", "--json"),
    "topo show": ("hgx-h100-ndr400 -n 4", "dgx-1v --json"),
    "topo draw": ("hgx-h100-ndr400 -n 4 -o machine.png", "my-machine.yaml -o machine.svg"),
    "topo check": ("hgx-h100-ndr400 -n 64", "my-machine.yaml"),
    "topo import": ("topo.xml -o my-machine.yaml", "topo-m.txt --nic-bandwidth '400 Gb/s' -o my-machine.yaml"),
    "topo new": ("my-machine.yaml", "my-machine.yaml --yes --gpu H100 --gpus 8 --nics 8 --nic-bandwidth '400 Gb/s'"),
    "schedule list": ("", "-c all_gather"),
    "schedule show": ("ring -c all_reduce -n 4", "schedule.xml --full"),
    "schedule draw": ("ring -c all_reduce -n 8 -o ring.svg", "nvls -c all_reduce -n 8 -o nvls.png"),
    "schedule stats": ("rabenseifner -c all_reduce -n 12", "ring -c all_reduce -n 8 --json"),
    "schedule check": ("ring -c all_reduce -n 12", "--all -n 1..8"),
    "schedule import": ("schedule.xml -o ours.json", "schedule.xml -b 64MiB -o ours.json"),
    "schedule export": ("ring -c all_reduce -n 8 -o ring.xml", "tree -c all_reduce -n 16 -o tree.goal"),
    "plot": ("out/quickstart --kind all", "allreduce-2-nodes-a100 --kind crossover --nodes 1,2,4,8 --out map.svg"),
    "schema": ("scenario > scenario.schema.json", "sweep"),
    "help": ("run", "topo new"),
}
"""By the words of a command, what may stand after them."""


def epilog(words: str) -> str:
    """The lines of help with the examples of a command; empty where it has none."""
    lines = [f"  commsim {words} {rest}".rstrip() for rest in EXAMPLES.get(words, ())]
    return "\n".join(["\b", "Examples:", *lines]) if lines else ""
