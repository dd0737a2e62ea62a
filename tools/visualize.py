"""Visualize a model: attention, features, and Grad-CAM of its predictions.

    colonnade visualize sem_fpn/xcit_small_12_p16_80k_ade20k iter_80000.pth street.jpg \\
        --out pictures
    colonnade visualize mask_rcnn/xcit_small_12_p16_3x_coco epoch_36.pth street.jpg \\
        --methods grad-cam --target person --out figures --format pdf
"""
from __future__ import annotations

from types import ModuleType

from colonnade.tools.command_line import command
from colonnade.visualization.options import VisualizeOptions


@command(VisualizeOptions, 'colonnade.visualization.figures.methods', intermixed=True)
def main(options: VisualizeOptions, methods: ModuleType) -> None:
    """Draw and write the figures."""
    for path in methods.write_figures(options):
        print(path, flush=True)


if __name__ == '__main__':
    main()
