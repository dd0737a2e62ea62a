"""How files of SimplifiedViT name their tensors."""
from __future__ import annotations

from colonnade.weights.layouts import Layout

LAYOUTS = (Layout('SimplifiedViT', ('patch_embed.proj.weight', 'pos_embed', 'blocks.0.attn.qk.')), )
