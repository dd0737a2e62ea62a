"""Talking-heads attention in bounded memory (Shazeer et al., arXiv 2003.02436; CaiT uses it).

The heads' maps are mixed before and after the softmax. Both act on each pair of query and key, so
blocks of queries can be computed one after the other, and no more than one block's maps exist at a
time. Shapes: ``B`` images, ``h`` heads, ``N`` tokens, ``d`` channels of a head, ``C = h d``.
"""
from __future__ import annotations

import torch
from timm.models.cait import TalkingHeadAttn
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

MIB = 2**20
#: MiB of one block's map. A CPU is fastest where the maps stay in its cache.
DEFAULT_BUDGET = {'cpu': 4., 'cuda': 64.}


def mix_heads(maps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Maps ``(B, h, n, N)`` to as many linear combinations of them.

    Args:
        maps: A map per head.
        weight: ``(h, h)``, output by input.
        bias: ``(h,)``.
    """
    batch, heads = maps.shape[:2]
    mixed = torch.baddbmm(bias[:, None], weight.expand(batch, heads, heads), maps.flatten(2))
    return mixed.view_as(maps)


def attend(query: Tensor, key: Tensor, value: Tensor, before: nn.Linear,
           after: nn.Linear) -> Tensor:
    """Talking-heads attention of some queries, with all their maps at once.

    Args:
        query: ``(B, h, n, d)``, scaled.
        key: ``(B, h, N, d)``.
        value: ``(B, h, N, d)``.
        before: Mixes the heads' logits.
        after: Mixes the heads' softmax weights.

    Returns:
        ``(B, h, n, d)``.
    """
    maps = query @ key.transpose(-2, -1)  # (B, h, n, N)
    maps = mix_heads(maps, before.weight, before.bias).softmax(dim=-1)
    return mix_heads(maps.to(value.dtype), after.weight, after.bias) @ value


def talking_heads(query: Tensor, key: Tensor, value: Tensor, before: nn.Linear, after: nn.Linear, *,
                  block_size: int) -> Tensor:
    """:func:`attend` for blocks of ``block_size`` queries; exact for every block size.

    With gradients, each block's maps are computed again in the backward pass instead of stored:
    memory is that of one block, forward and backward, ``O(B h block_size N)``.
    """
    blocks = query.split(block_size, dim=2)
    if torch.is_grad_enabled():
        attended = [
            checkpoint(
                attend,
                block,
                key,
                value,
                before,
                after,
                use_reentrant=False,
                preserve_rng_state=False) for block in blocks
        ]
    else:
        attended = [attend(block, key, value, before, after) for block in blocks]
    return attended[0] if len(attended) == 1 else torch.cat(attended, dim=2)


class BoundedTalkingHeadAttn(TalkingHeadAttn):
    """timm's talking-heads attention, with the same parameters, by blocks of queries.

    Attributes:
        block_size: Queries of a block; ``None`` takes as many as ``budget`` allows.
        budget: MiB of one map ``(B, h, block_size, N)``, of which two exist at a time in evaluation
            and some six in training; ``None`` is 4 on a CPU and 64 elsewhere.
    """
    block_size: int | None = None
    budget: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, C)`` to ``(B, N, C)``."""
        qkv = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = qkv  # each (B, h, N, d)
        attended = talking_heads(
            query * self.scale,
            key,
            value,
            self.proj_l,
            self.proj_w,
            block_size=self.block_size or self._affordable_block(query))
        return self.proj(attended.transpose(1, 2).flatten(2))

    def _affordable_block(self, query: Tensor) -> int:
        batch, heads, tokens, _ = query.shape
        budget = self.budget or DEFAULT_BUDGET.get(query.device.type, DEFAULT_BUDGET['cuda'])
        row = batch * heads * tokens * query.element_size()  # bytes of a query's map
        return min(max(int(budget * MIB / row), 1), tokens)
