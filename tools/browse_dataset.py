"""Write a page about a dataset: annotations, model inputs, statistics, suspected issues.

    colonnade browse-dataset mine.py --out browse.html
    colonnade browse-dataset mine.py --class dog --num 12 --num-views 5 --out dogs.html
"""
from __future__ import annotations

from colonnade.tools.command_line import command
from colonnade.visualization.options import BrowseOptions


@command(BrowseOptions)
def main(options: BrowseOptions) -> None:
    """Write the page, and print its summary."""
    from colonnade.settings.reading import import_without_warnings
    import_without_warnings('colonnade.visualization.dataset_browser')  # slow
    from colonnade.visualization.dataset_browser import browse_dataset
    print('reading annotations ...', flush=True)
    result = browse_dataset(**vars(options))
    print(f'{result}\nwritten: {result.page}')


if __name__ == '__main__':
    main()
