"""Write a page about a dataset: annotations, model inputs, statistics, suspected issues.

    colonnade browse-dataset mine.py --out browse.html
    colonnade browse-dataset mine.py --class dog --num 12 --num-views 5 --out dogs.html
"""
from __future__ import annotations

from types import ModuleType

from colonnade.tools.command_line import command
from colonnade.visualization.options import BrowseOptions


@command(BrowseOptions, 'colonnade.visualization.dataset_browser')
def main(options: BrowseOptions, dataset_browser: ModuleType) -> None:
    """Write the page, and print its summary."""
    print('reading annotations ...', flush=True)
    result = dataset_browser.browse_dataset(**vars(options))
    print(f'{result}\nwritten: {result.page}')


if __name__ == '__main__':
    main()
