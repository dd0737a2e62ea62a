"""Visualize a model: attention, features, and Grad-CAM of its predictions.

    colonnade visualize sem_fpn/xcit_small_12_p16_80k_ade20k iter_80000.pth street.jpg \\
        --out pictures
    colonnade visualize mask_rcnn/xcit_small_12_p16_3x_coco epoch_36.pth street.jpg \\
        --methods grad-cam --target person --out figures --format pdf
"""
from __future__ import annotations

from colonnade.tools.command_line import check_model_arguments, command
from colonnade.visualization.options import VisualizeOptions


@command(VisualizeOptions, intermixed=True)
def main(options: VisualizeOptions) -> None:
    """Draw and write the figures."""
    check_model_arguments(options.config, options.checkpoint)
    from colonnade.settings.reading import import_without_warnings
    import_without_warnings('colonnade.visualization.figures.methods')  # slow
    from colonnade.visualization.figures.methods import write_figures
    for path in write_figures(options):
        print(path, flush=True)


if __name__ == '__main__':
    main()
