"""Heads that mmdet and mmseg lack; importing this package imports mmseg."""
from .eomt_head import EoMTHead, SemanticEoMTHead
from .linear_head import LinearHead
from .pmt_head import PMTHead, SemanticPMTHead

__all__ = ['EoMTHead', 'LinearHead', 'PMTHead', 'SemanticEoMTHead', 'SemanticPMTHead']
