"""A transformer of plain torch modules, whole, or the slice of a tensor-parallel rank, or the layers of a stage.

It is there to be timed under torch's parallelisms: dense, causal, without dropout and without fused kernels of its own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from commsim.measure.run import TrainingTask


class _ToAllRanks(torch.autograd.Function):  # type: ignore[misc]
    """The input as it is; its gradient is the sum over the ranks (Megatron's f, Shoeybi et al. 2019)."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        del ctx
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del ctx
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return total


class _FromAllRanks(torch.autograd.Function):  # type: ignore[misc]
    """The sum of the input over the ranks; its gradient as it is (Megatron's g)."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        del ctx
        total = x.contiguous()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del ctx
        return gradients[0]


class Block(nn.Module):  # type: ignore[misc]
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
        return _ToAllRanks.apply(x) if self.tp > 1 and not self.alone else x

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
        self.blocks = nn.ModuleList(Block(task, tp) for _ in range(first, last))
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


def whole(task: TrainingTask) -> Transformer:
    """The whole model with the weights that every rank starts from."""
    torch.manual_seed(1)
    return Transformer(task)


def tensor_slice(task: TrainingTask, rank: int) -> Transformer:
    """The slice of a tensor-parallel rank, cut from the weights of `whole`."""
    full, part = whole(task).state_dict(), Transformer(task, tp=task.ranks)
    cut = {}
    for name, value in part.state_dict().items():
        given = full[name]
        if ".kv." in name:  # keys and values lie one after the other
            given = torch.cat([half.chunk(task.ranks)[rank] for half in given.chunk(2)])
        elif ".up." in name:
            parts = given.chunk(2) if task.gated_mlp else (given,)
            given = torch.cat([half.chunk(task.ranks)[rank] for half in parts])
        elif ".q." in name:
            given = given.chunk(task.ranks)[rank]
        elif ".out." in name or ".down." in name:
            given = given.chunk(task.ranks, dim=1)[rank]
        cut[name] = given.reshape(value.shape)
    part.load_state_dict(cut)
    return part


def stage(task: TrainingTask, rank: int) -> Transformer:
    """The layers of a pipeline stage, with the weights of `whole`; layers are dealt out evenly."""
    per_stage = task.layers // task.ranks
    first, last = rank * per_stage, (rank + 1) * per_stage
    full, part = whole(task), Transformer(task, first, last)
    part.blocks.load_state_dict(full.blocks[first:last].state_dict())
    for name in ("embedding", "norm", "head"):
        mine = getattr(part, name)
        if mine is not None:
            mine.load_state_dict(getattr(full, name).state_dict())
    return part


def loss(logits: Any, targets: Any) -> Any:
    """Mean cross entropy over all tokens."""
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def batch(task: TrainingTask, seed: int) -> tuple[Any, Any]:
    """Tokens and targets of one micro-batch, (micro_batch_size, seq_len) each, the same for the same seed."""
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(task.vocab, (task.micro_batch_size, task.seq_len + 1), generator=random)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
