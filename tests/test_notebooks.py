"""The notebooks of the docs, executed in a Jupyter kernel."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ROOT

nbformat = pytest.importorskip('nbformat', reason='Jupyter is not installed: make test installs it')
nbclient = pytest.importorskip('nbclient', reason='Jupyter is not installed: make test installs it')

NOTEBOOKS = sorted((ROOT / 'docs/notebooks').glob('*.ipynb'))
FEW = 6  # iterations of training
#: notebook -> last line of a cell -> MIME type of what it shows
SHOWN = {
    'own_data': {
        'run': 'text/html',
        'run.to_pandas().tail()': 'text/html',
        'result': 'text/html',
        'result.to_pandas()': 'text/html',
        'result.to_supervision()': 'text/plain',
    },
    'own_head': {
        'images.shape, distances.shape': 'text/plain',
        'Image.fromarray(panels.permute(1, 2, 0).byte().numpy()).resize((576, 192))': 'image/png',
    },
}


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path, tmp_path: Path) -> None:
    content = json.loads(path.read_text())
    sources = [cell for cell in content['cells'] if cell['cell_type'] == 'code']
    assert not any(cell['outputs'] or cell['execution_count'] for cell in sources)

    notebook = nbformat.reads(path.read_text(), as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == 'code']
    head, _, number = cells[0].source.rpartition('ITERATIONS = ')
    assert head and int(number) > FEW
    cells[0].source = f'{head}ITERATIONS = {FEW}'
    nbclient.NotebookClient(
        notebook, timeout=240, resources=dict(metadata=dict(path=str(tmp_path)))).execute()
    outputs = {cell.source.splitlines()[-1]: cell.outputs for cell in cells}
    for line, kind in SHOWN[path.stem].items():
        assert kind in outputs[line][-1].data, line


def test_every_notebook_is_checked() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(SHOWN)
