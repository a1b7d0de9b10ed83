"""A transformer of plain torch modules, whole, or the slice of a tensor-parallel rank, or the layers of a stage.

It is there to be timed under torch's parallelisms: dense, causal, without dropout and without fused kernels of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from commsim.measure.tasks import TrainingTask


def _sum(x: Any) -> Any:
    total = x.contiguous()
    dist.all_reduce(total)
    return total


class _FromAllRanks(torch.autograd.Function):  # type: ignore[misc]
    """The sum of the input over the ranks; its gradient as it is (Megatron's g)."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        del ctx
        return _sum(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del ctx
        return gradients[0]


class TransformerLayer(nn.Module):  # type: ignore[misc]
    """One layer: attention and MLP, each behind a norm, with `tp` slices of the heads and of the MLP's width.

    `alone` leaves the sums over the ranks out: what a rank computes, without what it waits for.
    """

    def __init__(self, task: TrainingTask, tp: int = 1) -> None:
        super().__init__()
        head = task.hidden // task.heads
        self.heads, self.kv_heads, self.head, self.gated = task.heads // tp, task.kv_heads // tp, head, task.gated_mlp
        self.tp, self.alone = tp, False
        self.norm1, self.norm2 = nn.LayerNorm(task.hidden, bias=False), nn.LayerNorm(task.hidden, bias=False)
        self.q = nn.Linear(task.hidden, self.heads * head, bias=False)
        self.kv = nn.Linear(task.hidden, 2 * self.kv_heads * head, bias=False)
        self.out = nn.Linear(self.heads * head, task.hidden, bias=False)
        self.up = nn.Linear(task.hidden, (1 + self.gated) * task.ffn_hidden // tp, bias=False)
        self.down = nn.Linear(task.ffn_hidden // tp, task.hidden, bias=False)

    def forward(self, x: Any) -> Any:
        x = x + self._summed(self._attention(self._spread(self.norm1(x))))
        return x + self._summed(self._mlp(self._spread(self.norm2(x))))

    def _spread(self, x: Any) -> Any:
        """The input as it is; its gradient is the sum over the ranks (Megatron's f, Shoeybi et al. 2019)."""
        if self.tp > 1 and not self.alone:
            x.register_hook(_sum)
        return x

    def _summed(self, x: Any) -> Any:
        return _FromAllRanks.apply(x) if self.tp > 1 and not self.alone else x

    def _attention(self, x: Any) -> Any:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, self.heads, self.head).transpose(1, 2)
        k, v = self.kv(x).view(batch, length, 2, self.kv_heads, self.head).transpose(1, 3).unbind(2)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))

    def _mlp(self, x: Any) -> Any:
        wide = self.up(x)
        if self.gated:
            gate, wide = wide.chunk(2, dim=-1)
            return self.down(functional.silu(gate) * wide)
        return self.down(functional.gelu(wide))


class Transformer(nn.Module):  # type: ignore[misc]
    """Embedding, layers first..last and head; a stage of a pipeline has only some of them."""

    def __init__(self, task: TrainingTask, first: int = 0, last: int | None = None, tp: int = 1) -> None:
        super().__init__()
        last = task.layers if last is None else last
        self.embedding = nn.Embedding(task.vocab, task.hidden) if first == 0 else None
        self.blocks = nn.ModuleList(TransformerLayer(task, tp) for _ in range(first, last))
        ends = last == task.layers
        self.norm = nn.LayerNorm(task.hidden, bias=False) if ends else None
        self.head = nn.Linear(task.hidden, task.vocab, bias=False) if ends else None

    def forward(self, x: Any) -> Any:
        """Logits of tokens; or what the stage hands on, of what it was handed."""
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None or self.norm is None else self.head(self.norm(x))


def layers_of(task: TrainingTask, first: int, last: int, device: Any = "cpu") -> Transformer:
    """Layers first..last with their weights, drawn by name: no rank ever holds more of the model than it runs."""
    return _drawn(task, _empty(task, first, last, 1, device), first, lambda name, full: full)


def whole(task: TrainingTask, device: Any = "cpu") -> Transformer:
    """The whole model with the weights that every rank starts from."""
    return layers_of(task, 0, task.layers, device)


def stage(task: TrainingTask, rank: int, device: Any = "cpu") -> Transformer:
    """The layers of a pipeline stage, with the weights of `whole`; layers are dealt out evenly."""
    per_stage = task.layers // task.ranks
    return layers_of(task, rank * per_stage, (rank + 1) * per_stage, device)


def tensor_slice(task: TrainingTask, rank: int, device: Any = "cpu") -> Transformer:
    """The slice of a tensor-parallel rank, cut from the weights of `whole`."""

    def cut(name: str, full: Any) -> Any:
        if ".kv." in name:  # keys and values lie one after the other
            return torch.cat([half.chunk(task.ranks)[rank] for half in full.chunk(2)])
        if ".up." in name:
            parts = full.chunk(2) if task.gated_mlp else (full,)
            return torch.cat([half.chunk(task.ranks)[rank] for half in parts])
        if ".q." in name:
            return full.chunk(task.ranks)[rank]
        if ".out." in name or ".down." in name:
            return full.chunk(task.ranks, dim=1)[rank]
        return full

    return _drawn(task, _empty(task, 0, task.layers, task.ranks, device), 0, cut)


def sharded(task: TrainingTask, rank: int, device: Any, shard: Callable[[Any], Any]) -> Transformer:
    """The whole model cut by `shard` (FSDP's `fully_shard`), of which a rank keeps its own rows alone.

    Its shards are in float32, as they are the master copy, but for ``pure-bf16``.
    Each weight is drawn whole and cut at once, as FSDP cuts it: by `torch.chunk` along its first dimension.
    """
    with torch.device("meta"):
        model: Transformer = Transformer(task).to(torch.bfloat16 if task.precision == "pure-bf16" else torch.float32)
    for block in model.blocks:
        shard(block)
    shard(model)
    model.to_empty(device=device)

    def cut(name: str, full: Any) -> Any:
        chunks = full.chunk(task.ranks)
        return chunks[rank] if rank < len(chunks) else full[:0]

    return _drawn(task, model, 0, cut)


def reference_loss(task: TrainingTask, batches: list[tuple[Any, Any]], device: Any) -> float:
    """Mean loss of some micro-batches under the first weights, one layer in memory at a time, without communication."""
    with torch.no_grad():
        states = [tokens for tokens, _ in batches]
        for i in range(task.layers):
            layer = layers_of(task, i, i + 1, device)
            states = [layer(x) for x in states]
        losses = [loss(x, targets) for x, (_, targets) in zip(states, batches, strict=True)]
    return float(torch.stack(losses).mean())


def compute_type(task: TrainingTask) -> torch.dtype:
    """The type of the weights that are multiplied, and of activations and gradients."""
    return torch.bfloat16 if task.width == 2 else torch.float32


def _empty(task: TrainingTask, first: int, last: int, tp: int, device: Any) -> Transformer:
    with torch.device("meta"):
        model: Transformer = Transformer(task, first, last, tp).to(compute_type(task))
    model.to_empty(device=device)
    return model


def _drawn(task: TrainingTask, model: Transformer, first: int, cut: Callable[[str, Any], Any]) -> Transformer:
    """Fills a model whose blocks begin at layer `first` with its part of the weights; returns it."""
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in Transformer(task).named_parameters()}
    with torch.no_grad():
        for name, value in model.named_parameters():
            full_name = name
            if name.startswith("blocks."):
                _, number, rest = name.split(".", 2)
                full_name = f"blocks.{first + int(number)}.{rest}"
            mine = value.to_local() if hasattr(value, "to_local") else value
            part = cut(name, _weight(full_name, shapes[full_name], mine.device))
            mine.copy_(part.reshape(mine.shape))
    return model


def _weight(name: str, shape: Any, device: Any) -> Any:
    """A weight as every rank draws it, in float32, distributed as torch's own modules begin."""
    if "norm" in name:
        return torch.ones(shape, device=device)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])
    generator = torch.Generator(device=device).manual_seed(seed)
    values = torch.empty(shape, device=device)
    if name.startswith("embedding"):
        return values.normal_(generator=generator)
    bound = shape[-1] ** -0.5
    return values.uniform_(-bound, bound, generator=generator)


def loss(logits: Any, targets: Any) -> Any:
    """Mean cross entropy over all tokens, in float32 whatever the logits are."""
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), targets.reshape(-1))


def batch(task: TrainingTask, seed: int) -> tuple[Any, Any]:
    """Tokens and targets of one micro-batch, (micro_batch_size, seq_len) each, the same for the same seed."""
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(task.vocab, (task.micro_batch_size, task.seq_len + 1), generator=random)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
