"""The weights that a trunk starts from."""
from __future__ import annotations

import logging

from mmengine.logging import print_log
from mmengine.model import BaseModule

from .loading import load_weights


class Pretrained(BaseModule):
    """A module whose ``init_cfg`` may name a file, an address or ``timm://NAME`` to start from."""

    @property
    def pretrained(self) -> dict | None:
        """The ``type='Pretrained'`` part of ``init_cfg``."""
        init_cfgs = self.init_cfg if isinstance(self.init_cfg, list) else [self.init_cfg or {}]
        return next((cfg for cfg in init_cfgs if cfg.get('type') == 'Pretrained'), None)

    def init_weights(self) -> None:
        """Load what ``init_cfg`` names, or warn that training starts from random weights.

        Raises:
            FileNotFoundError: If there is no such file.
            WeightsError: If the weights cannot be fetched or read, or do not fit.
        """
        if self._is_init:  # or a checkpoint has the weights
            return
        pretrained = self.pretrained
        if pretrained is None:
            print_log(
                f'{type(self).__name__} starts from random weights, unless a checkpoint is loaded: '
                "its init_cfg is not dict(type='Pretrained', checkpoint=...)",
                logger='current',
                level=logging.WARNING)
            super().init_weights()
            return
        for key in set(pretrained) - {'type', 'checkpoint', 'trust'}:
            print_log(
                f'init_cfg.{key} has no effect on {type(self).__name__}: the layout of the file is '
                'recognised',
                logger='current',
                level=logging.WARNING)
        load_weights(self, pretrained['checkpoint'], trust=pretrained.get('trust', False))
        self._is_init = True
