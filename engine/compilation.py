"""Backbones whose blocks are compiled with torch.compile."""
from __future__ import annotations

from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from colonnade.backbones import ColumnarBackbone
from colonnade.common.errors import UserError


def compile_blocks(model: nn.Module, *, cuda_graphs: bool = False) -> None:
    """Compile each block of the backbones; names and weights stay.

    Windows of plain ViTs and chunks on CPUs break the graph of a block.

    Args:
        model: Detector or segmenter.
        cuda_graphs: Record a CUDA graph of each block for each image size, instead of compiling for
            images of any size.
    """
    backbones = [each for each in model.modules() if isinstance(each, ColumnarBackbone)]
    if not backbones:
        raise UserError('--compile needs a backbone from colonnade.backbones')
    options: dict[str, Any] = dict(dynamic=True)
    if cuda_graphs:
        options = dict(dynamic=False, mode='reduce-overhead')
    for backbone in backbones:
        for block in backbone.blocks:
            block.compile(**options)


class UncompiledEvaluation(Hook):
    """Evaluate without compiled blocks: with CUDA graphs, they would be recorded for each size."""

    def before_train(self, runner: Runner) -> None:
        """Use the compiled blocks, even if a failed evaluation of this process did not end."""
        self.after_val(runner)

    def before_val(self, runner: Runner) -> None:
        """Call the blocks themselves."""
        torch.compiler.set_stance('force_eager')

    def after_val(self, runner: Runner) -> None:
        """Use the compiled blocks again."""
        torch.compiler.set_stance('default')
