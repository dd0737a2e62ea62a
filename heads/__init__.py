"""Heads that mmdet and mmseg lack; importing this package imports mmseg."""
from .eomt_head import EoMTHead, SemanticEoMTHead
from .federated_loss import FederatedLoss
from .linear_head import LinearHead
from .pmt_head import PMTHead, SemanticPMTHead

__all__ = [
    'EoMTHead', 'FederatedLoss', 'LinearHead', 'PMTHead', 'SemanticEoMTHead', 'SemanticPMTHead'
]
