"""``commsim rates``: what this computer computes, for the model of training steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commsim.cli.say import aside


def rates(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for rates.csv, and compute.yaml (GPU) or processor.yaml.")
    ] = Path("out/rates"),
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU where there is one.")] = "auto",
    threads: Annotated[int, typer.Option(min=1, help="Threads on a CPU: a rank of `commsim measure` has one.")] = 1,
    seconds: Annotated[float | None, typer.Option(min=0, help="After these no further shape is begun.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed repeats of each shape.")] = 9,
) -> None:
    """Measure rates of matrix products, attention and memory copies, and the time of a launch, on one device."""
    import math
    import os
    import time

    from commsim.errors import CommsimError, MeasurementError
    from commsim.files import write_atomically
    from commsim.measure.launcher import require_torch
    from commsim.units import GIGA

    require_torch()
    if device not in ("auto", "cpu", "cuda"):
        raise CommsimError(f"found --device {device!r}, expected cpu, cuda or auto")
    import torch

    from commsim.measure.compute_rates import compute_rates, parameter_yaml, processor_yaml, rates_csv
    from commsim.measure.conditions import cpu_model
    from commsim.measure.gpu import gpus
    from commsim.measure.gpu_conditions import gpu_state, slowed

    has_gpu = device != "cpu" and gpus().available()
    if device == "cuda" and not has_gpu:
        raise MeasurementError(f"--device cuda: torch {torch.__version__} sees no GPU")
    torch.set_num_threads(threads)
    gpu = gpus() if has_gpu else None
    if gpu is not None:
        gpu.use(0)
    where = torch.device("cpu") if gpu is None else gpu.torch_device(0)
    rated = compute_rates(where, repeats, gpu, until_s=math.inf if seconds is None else time.monotonic() + seconds)
    written = [write_atomically(out / "rates.csv", rates_csv(rated))]
    try:
        if gpu is not None:
            board = gpu.properties(0)
            name, sheet = "compute.yaml", parameter_yaml(rated, board.name, board.memory_bytes)
            if sheet is None:
                raise MeasurementError(f"there is no datasheet of {board.name} to take shares of")
        else:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            name, sheet = "processor.yaml", processor_yaml(rated, cpu_model(), memory, torch.get_num_threads())
        written.append(write_atomically(out / name, sheet))
    except MeasurementError as error:
        typer.echo(f"# no parameters: {error}", err=True)
    if gpu is not None and (reasons := slowed(gpu_state(gpu, 0))):
        typer.echo(f"# warning: the GPU is slowed down: {', '.join(reasons)}", err=True)
    for rate in rated:
        unit = {"copy": "GB/s", "launch": "million launches/s"}.get(rate.kind, "GFLOP/s")
        scale = 1e6 if rate.kind == "launch" else GIGA
        typer.echo(f"{rate.kind:>18} {rate.shape:>28} {rate.dtype:>9} {rate.per_second / scale:>10.3f} {unit}")
    aside(f"# wrote {', '.join(path.name for path in written)} in {out}")
