"""Random changes of command lines whose files do not exist, so that none succeeds."""
from __future__ import annotations

import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest
from helpers.fuzzing import fuzz, limited
from hypothesis import event, given
from hypothesis import strategies as st

SEGMENTER = 'sem_fpn/xcit_nano_12_p16_slim_shapes'
DETECTOR = 'mask_rcnn/xcit_nano_12_p16_slim_shapes'
#: valid arguments of each command that reads files, apart from the missing files
COMMANDS = {
    'train': f'{SEGMENTER} --data-root nowhere --work-dir run --resume --grad-accum 2 --tracker '
             'tensorboard --patience 3 --min-delta 0.1 --cfg-options train_cfg.max_iters=1 '
             'train_dataloader.batch_size=2',
    'test': f'{SEGMENTER} missing.pth --data-root nowhere --work-dir run --out m.json --tta',
    'predict': f'{DETECTOR} missing.pth nowhere --out found --threshold 0.5 --tile-size 64 '
               '--tile-overlap 0.2 --batch-size 2 --max-inputs 3 --label-offset 1 '
               '--outputs visualizations results',
    'visualize': f'{SEGMENTER} missing.pth nowhere.jpg --out pictures',
    'export': f'{SEGMENTER} missing.pth --out exported',
    'package': f'make {SEGMENTER} missing.pth --out packed --license cc-by-4.0',
    'serve': f'{SEGMENTER} missing.pth --port 0 --batch-size 2 --max-megabytes 3 --timeout 5',
    'create_config': f'{DETECTOR} --coco a.json b.json --images left right --classes disc square '
                  '--batch-size 2 --gpus 1 --epochs 3 --out own.py',
    'browse_dataset': f'{DETECTOR} --data-root nowhere --out pages',
    'make_shards': f'{SEGMENTER} shards --data-root nowhere --shard-size 5',
    'convert_checkpoint': 'missing.pth out.pth --report --dry-run',
    'build_report': 'nowhere',
    'compare_runs': 'nowhere elsewhere --out compare.html',
}  # yapf: disable
#: words without paths outside the temporary folder
WORDS = ('', ' ', '-', '--', '-1', '0', '1e400', 'nan', '9' * 400, 'x', '--x', '=', 'a=b', 'a=',
         'model.x=1', 'model=1', 'train_cfg=', 'train_cfg.max_iters=x', 'model.backbone.arch=tiny',
         'train_dataloader=None', '[', '(((', '{}', 'ü', '\udcff', 'a\nb', '\x1b[31mred', 'None',
         '--trust', '--resume', '--load-from', '--amp', '--fsdp', '--launcher', '--estimate',
         '--fuse', '--device', 'cpu', 'cuda:99', '--data', '--masks', '--val-fraction', '0.2',
         '--out', 'folder', 'file.json', 'file.pth', SEGMENTER, DETECTOR, 'sem_fpn',
         '--cfg-options')


@st.composite
def change_words(draw: st.DrawFn, command: str) -> list[str]:
    """Return words of a command with some replaced, inserted, removed, repeated or moved."""
    words = command.split()
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(words) - 1, 0)))
        match draw(st.sampled_from(['replace', 'insert', 'remove', 'repeat', 'move'])):
            case 'replace':
                words[at:at + 1] = [draw(st.sampled_from(WORDS))]
            case 'insert':
                words.insert(at, draw(st.sampled_from(WORDS)))
            case 'remove':
                del words[at:at + 1]
            case 'repeat':
                words[at:at] = words[at:at + 2]
            case 'move' if words:
                words.insert(draw(st.integers(0, len(words))), words.pop(at))
    # argparse of Python 3.11 parses a second '--' as an empty list.
    return [word for at, word in enumerate(words) if word != '--' or '--' not in words[:at]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory with an empty folder, and files with misleading names."""
    (tmp_path / 'folder').mkdir()
    (tmp_path / 'file.json').write_text('{}')
    (tmp_path / 'file.pth').write_bytes(b'\x80\x02}q\x00.')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'argv', list(sys.argv))
    return tmp_path


@pytest.mark.parametrize('tool', COMMANDS)
@fuzz(few=3, many=700)
@given(draw=st.data())
def test_command_lines(tool: str, folder: Path, draw: st.DataObject) -> None:
    """A tool fails with its usage, or with one line that starts with its name."""
    words = draw.draw(change_words(COMMANDS[tool]))
    sys.argv = [tool, *words]
    output = StringIO()
    with limited(), redirect_stdout(output), redirect_stderr(output), \
            pytest.raises(SystemExit) as stopped:
        import_module(f'colonnade.tools.{tool}').main()
    code = stopped.value.code
    if isinstance(code, str):
        event('rejected')
        prefix = f'{tool.replace("_", "-")}: '
        assert code.startswith(prefix) and len(code) > len(prefix)
    elif code == 2:
        event('usage')
        assert f'{tool}: error: ' in output.getvalue() or 'error: ' in output.getvalue()
    else:
        assert code == 0 and {'-h', '--help'} & set(words), (code, output.getvalue()[-300:])
