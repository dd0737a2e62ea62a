"""How files of CaiT name their tensors."""
from __future__ import annotations

from colonnade.weights.layouts import Layout

LAYOUTS = (
    Layout('CaiT, original or timm', ('blocks.0.attn.proj_l.', 'blocks_token_only.')),
    Layout('CaiT, ours', ('blocks.0.attn.proj_l.', )),
)
