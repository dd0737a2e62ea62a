"""Store what mmcv's compiled operators give on a CPU, for test_mmcv_ext.py.

    make env COMPILED_MMCV=1
    PYTHONPATH=tests .venv/bin/python tests/helpers/make_mmcv_fixtures.py

The same mmcv gives the same file, up to the last digits of sums.
"""
from __future__ import annotations

import sys
from pathlib import Path

import mmcv._ext
import numpy as np
from helpers.mmcv_cases import cases

FIXTURES = Path(__file__).parents[1] / 'mmcv_compiled.npz'


def main() -> None:
    """Run every case and write its results."""
    if mmcv._ext.__file__.endswith('.py'):
        sys.exit('This mmcv has no compiled operators: make env COMPILED_MMCV=1')
    results = {
        f'{name}/{index}': tensor.numpy()
        for name, case in cases().items()
        for index, tensor in enumerate(case())
    }
    np.savez_compressed(FIXTURES, **results)


if __name__ == '__main__':
    main()
