"""Training steps as a GPU needs them: an order without deadlock, 16 bits, nothing read back, no replica in the peak."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from commsim.measure import parallelisms, training_steps
from commsim.measure.gpu import Gpus
from commsim.measure.small_transformer import batch, loss, reference_loss, whole
from commsim.measure.tasks import TrainingTask
from commsim.measure.traffic import Bytes

TASK = TrainingTask("small", "pp", 4, 4, 32, 64, 4, 2, 50, 8, micro_batch_size=2, micro_batches=5)
CPU = torch.device("cpu")

Group = list[tuple[str, int]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As a rank has: threads for small tensors only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class _Done:
    def wait(self) -> None:
        pass


def recorded_order(task: TrainingTask, rank: int, monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    """The exchanges of one step of a pipeline stage, in the order of its stream; what is batched is one group."""
    groups: list[Group] = []
    one = {"isend": "send", "send": "send", "irecv": "receive", "recv": "receive"}

    def call(name: str) -> Any:
        def record(tensor: Any, peer: int, *_: Any, **__: Any) -> _Done:
            groups.append([(one[name], peer)])
            return _Done()

        record.__name__ = name
        return record

    def batched(calls: list[tuple[Any, Any, int]]) -> list[_Done]:
        groups.append([(one[op.__name__], peer) for op, _, peer in calls])
        return [_Done()]

    for name in one:
        monkeypatch.setattr(dist, name, call(name))
    monkeypatch.setattr(dist, "P2POp", lambda op, tensor, peer: (op, tensor, peer))
    monkeypatch.setattr(dist, "batch_isend_irecv", batched)
    parallelisms.PARALLELISMS["pp"](task, rank, CPU).step()
    return groups


def stuck(orders: list[list[Group]]) -> list[int]:
    """The ranks that never finish where a send is through only together with its receive, and groups run in order."""
    ahead = [list(order) for order in orders]
    running: list[Group] = [list(order.pop(0)) if order else [] for order in ahead]
    moved = True
    while moved:
        moved = False
        for rank, group in enumerate(running):
            for kind, peer in list(group):
                other = ("receive" if kind == "send" else "send", rank)
                if other in running[peer]:
                    group.remove((kind, peer))
                    running[peer].remove(other)
                    moved = True
        for rank, group in enumerate(running):
            if not group and ahead[rank]:
                running[rank] = list(ahead[rank].pop(0))
                moved = True
    return [rank for rank, group in enumerate(running) if group]


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 5])
@pytest.mark.parametrize("ranks", [2, 4])
def test_no_stage_waits_for_ever_under_rendezvous(
    monkeypatch: pytest.MonkeyPatch, ranks: int, micro_batches: int
) -> None:
    task = replace(TASK, ranks=ranks, micro_batches=micro_batches)
    orders = [recorded_order(task, rank, monkeypatch) for rank in range(ranks)]
    assert stuck(orders) == []
    sent = [sum(kind == "send" for group in order for kind, _ in group) for order in orders]
    assert sent == [micro_batches * ((rank > 0) + (rank < ranks - 1)) for rank in range(ranks)]


def test_the_referee_sees_a_deadlock() -> None:
    """Two neighbours that both send first."""
    assert stuck([[[("send", 1)], [("receive", 1)]], [[("send", 0)], [("receive", 0)]]]) == [0, 1]
    assert stuck([[[("send", 1), ("receive", 1)]], [[("send", 0), ("receive", 0)]]]) == []


ALONE = replace(TASK, scheme="tp", ranks=1)


def test_a_step_reads_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU every number read waits for the device. Adam on a CPU counts its steps there; fused it does not."""
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: None)
    step = parallelisms.PARALLELISMS["tp"](ALONE, 0, CPU).step

    def read(self: Any) -> float:
        raise AssertionError("a number was read")

    for name in ("__float__", "item", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, read)
    step()


def test_16_bits_are_computed_with_and_a_master_copy_is_kept() -> None:
    """Ten updates of 1e-4 each move a weight of 0.1 by less than bfloat16 tells apart at once: 2**-12."""
    task = replace(ALONE, precision="bf16-fp32")
    parallel = parallelisms.PARALLELISMS["tp"](task, 0, CPU)
    first = float(parallel.step())
    data = [batch(task, i) for i in range(task.micro_batches)]
    assert first == pytest.approx(reference_loss(task, data, CPU), rel=2e-2)
    for _ in range(20):
        last = float(parallel.step())
    assert last < first
    assert parallel.parameter_bytes == 2 * sum(p.numel() for p in whole(task).parameters())
    assert {p.dtype for p in whole(task).parameters()} == {torch.bfloat16}
    assert training_steps.expected_sent(replace(task, scheme="pp", ranks=2), 0, 0) == 5 * 2 * 8 * 32 * 2


@pytest.mark.parametrize(("device", "how"), [("cuda", {"fused": True}), ("cpu", {"foreach": False})])
def test_the_optimizer_is_fused_on_a_gpu(monkeypatch: pytest.MonkeyPatch, device: str, how: dict[str, bool]) -> None:
    given: dict[str, Any] = {}

    def adam(weights: Any, **options: Any) -> None:
        given.update(options)

    monkeypatch.setattr(torch.optim, "AdamW", adam)
    parallelisms.Optimizer(ALONE, whole(ALONE), torch.device(device))
    assert given == {"lr": 1e-4} | how


@pytest.mark.parametrize(("precision", "products"), [("fp32", "highest"), ("tf32", "high")])
def test_tf32_is_of_the_task_alone(monkeypatch: pytest.MonkeyPatch, precision: str, products: str) -> None:
    seen = []
    monkeypatch.setattr(training_steps, "barrier", lambda: seen.append(torch.get_float32_matmul_precision()))
    before = torch.get_float32_matmul_precision()
    training_steps.measure_steps(replace(ALONE, precision=precision), 0, CPU, 1, Bytes)
    assert set(seen) == {products}
    assert torch.get_float32_matmul_precision() == before


def test_the_first_loss_is_held_against_the_model_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [batch(TASK, i) for i in range(3)]
    whole_model = whole(TASK)
    expected = sum(float(loss(whole_model(x), y).detach()) for x, y in tokens) / 3
    assert reference_loss(TASK, tokens, CPU) == pytest.approx(expected, rel=1e-6)


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def live_bytes() -> int:
    """Bytes of all tensors that exist, each storage once."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.device.type == "cpu":
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        if type(thing).__name__ == "DTensor":
            storage = thing._local_tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


@pytest.mark.parametrize("scheme", ["zero2", "zero3"])
@pytest.mark.usefixtures("one_rank")
@pytest.mark.filterwarnings("ignore")
def test_the_peak_of_fsdp_holds_no_replica(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """Weights and two states of Adam are 12 B per parameter; a replica beside them would make it 16."""
    task = replace(ALONE, scheme=scheme, hidden=128, ffn_hidden=512, vocab=500, micro_batches=1)
    parameters = sum(p.numel() for p in whole(task).parameters())
    before, held = live_bytes(), []
    monkeypatch.setattr(training_steps, "_forget_peak", lambda _: held.append(live_bytes() - before))
    sample = training_steps.measure_steps(task, 0, CPU, 1, Bytes)
    assert 11.9 < held[0] / parameters < 14
    assert sample.alone_seconds  # the replica is made afterwards
    assert sample.loss == pytest.approx(sample.expected_loss, rel=1e-4)


class _FullGpu(Gpus):
    """A GPU on which the model without shards has no room."""

    def synchronize(self) -> None:
        pass

    def release_memory(self) -> None:
        pass

    def reset_peak_memory(self) -> None:
        pass

    def peak_memory(self) -> int:
        return 1


def test_a_model_without_room_alone_is_still_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    task = replace(ALONE, micro_batches=1)

    def full() -> Any:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    parallel = parallelisms.PARALLELISMS["tp"](task, 0, CPU)
    monkeypatch.setattr(training_steps, "barrier", lambda: None)
    monkeypatch.setitem(parallelisms.PARALLELISMS, "tp", lambda *_: replace(parallel, alone=full))
    sample = training_steps.measure_steps(task, 0, CPU, 2, Bytes, _FullGpu())
    record = training_steps.training_record(task, [sample])
    assert (record["compute_s"], record["exposed_comm_s"]) == (None, None)
    assert record["step_s"] > 0
    assert "no room to compute alone" in training_steps.format_record(record)
