"""Heads that mmdet and mmseg lack; importing this package imports mmseg."""
from .linear_head import LinearHead
from .pmt_head import PMTHead, SemanticPMTHead

__all__ = ['LinearHead', 'PMTHead', 'SemanticPMTHead']
