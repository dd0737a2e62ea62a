"""Measure errors of cross-covariance attention against float64.

    python docs/measure_covariance.py

Tokens are drawn around a mean that they share, as in an image of one color. An error is the largest
difference to timm's layer in float64, as a fraction of the largest value.
"""
from __future__ import annotations

import copy

import torch
from timm.models.xcit import XCA
from torch import Tensor, nn

from colonnade.backbones.xcit.cross_covariance import (AttentionWeights, attend_by_covariance,
                                                       attend_plain)

NUM_TOKENS = 4096  # 1024 x 1024 pixels, patches of 16
SIZES = {'XCiT-N': (128, 4), 'XCiT-S': (384, 8), 'XCiT-L': (768, 16)}  # width and heads
MEANS = (0, 10, 1000)  # in standard deviations


@torch.no_grad()
def compute_errors(width: int, num_heads: int, mean: float) -> list[float]:
    """Return the errors of timm's layer, the plain and the covariance form in float32."""
    torch.manual_seed(0)
    layer = XCA(width, num_heads, qkv_bias=True)
    nn.init.uniform_(layer.temperature, 0.5, 2.)
    nn.init.normal_(layer.qkv.bias, std=0.1)
    weights = AttentionWeights(layer.qkv, layer.temperature, layer.proj.weight, layer.proj.bias)
    tokens = torch.randn(2, NUM_TOKENS, width) + mean * torch.randn(width)
    exact = copy.deepcopy(layer).double()(tokens.double())

    def compute_error(out: Tensor) -> float:
        return ((out - exact).abs().max() / exact.abs().max()).item()

    forms = (layer(tokens), attend_plain(tokens, weights), attend_by_covariance(tokens, weights))
    return [compute_error(out) for out in forms]


if __name__ == '__main__':
    print('| layer of | mean / deviation | timm | plain form | covariance form |')
    print('|---|---|---|---|---|')
    for name, size in SIZES.items():
        for mean in MEANS:
            errors = ' | '.join(f'{error:.1e}' for error in compute_errors(*size, mean))
            print(f'| {name} | {mean:,} | {errors} |')
