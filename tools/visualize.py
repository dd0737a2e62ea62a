"""Visualize what a model looks at: attention, features, and what its predictions depend on.

    colonnade visualize sem_fpn/xcit_small_12_p16_80k_ade20k iter_80000.pth street.jpg \\
        --out pictures
    colonnade visualize mask_rcnn/xcit_small_12_p16_3x_coco epoch_36.pth street.jpg \\
        --what grad-cam --target person --out pictures --format pdf
"""
from __future__ import annotations

from colonnade.tools.command_line import check_model_arguments, command
from colonnade.visualization.options import VisualizeOptions


@command(VisualizeOptions, intermixed=True)
def main(options: VisualizeOptions) -> None:
    """Draw and write the pictures."""
    check_model_arguments(options.config, options.checkpoint)
    from colonnade.settings.reading import import_without_warnings
    import_without_warnings('colonnade.visualization.figures.figure_files')  # takes seconds
    from colonnade.visualization.figures.figure_files import visualize
    for path in visualize(options):
        print(path, flush=True)


if __name__ == '__main__':
    main()
