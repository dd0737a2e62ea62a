"""The package ``colonnade``: its names, configs, command, training, evaluation and prediction."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from shutil import which

import pytest
from conftest import ROOT, config, run_python

import colonnade
from colonnade.__main__ import TOOLS
from colonnade.configs import find_config, list_configs

LEAF = 'sem_fpn/xcit_nano_12_p16_slim_shapes'


def test_import_is_lazy() -> None:
    code = ('import colonnade, sys; colonnade.list_configs(); '
            'print(*sorted({"torch", "mmengine", "numpy"} & sys.modules.keys()), "are imported")')
    assert run_python('-c', code) == 'are imported\n'


@pytest.mark.parametrize('name', colonnade.__all__)
def test_public_names(name: str) -> None:
    assert name in dir(colonnade)
    assert getattr(colonnade, name).__doc__


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="'colonnade' has no attribute 'lead'"):
        colonnade.lead  # noqa: B018


def test_names_of_configs() -> None:
    names = list_configs()
    assert len(names) == len(set(names)) > 100
    assert all(find_config(name) == ROOT / f'configs/{name}.py' for name in names)
    assert list_configs('mask_rcnn/*slim_coco') == ['mask_rcnn/xcit_nano_12_p16_slim_coco']
    assert LEAF in list_configs('*slim_shapes') and not list_configs('nothing*')


def test_config_without_folder(tmp_path: Path) -> None:
    assert find_config('xcit_nano_12_p16_slim_shapes_adapter').parent.name == 'mask_rcnn'
    with pytest.raises(ValueError, match='15 configs are called .*: pass one of .*dino/xcit_nano'):
        find_config('xcit_nano_12_p16_slim_shapes')
    with pytest.raises(FileNotFoundError, match=f'did you mean {LEAF}?'):
        find_config(f'{LEAF}s')
    own = tmp_path / 'own.py'
    own.touch()
    assert find_config(own) == own


def run_command(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, '-W', 'ignore', '-m', 'colonnade', *arguments],
                          capture_output=True,
                          text=True,
                          cwd=ROOT)


def test_command() -> None:
    assert run_command('configs', 'sem_fpn/*nano*shapes').stdout.split()[-1] == LEAF
    printed = run_command().stdout
    assert all(f'\n  {tool.replace("_", "-")} ' in printed for tool in (*TOOLS, 'configs'))

    assert run_command('configs', 'dpt').stdout.startswith('dpt/')
    assert run_command('configs', '*no*thing').stderr == 'colonnade: no config matches *no*thing\n'
    assert run_command('configs', 'nothing').stderr == (
        'colonnade: no config matches nothing: use wildcards, as in "*nothing*"\n')
    assert run_command('trian').stderr == (
        "colonnade: unknown command 'trian': did you mean train? Run colonnade --help for a list\n")
    for tool in ('list_param_groups', 'train'):
        name = tool.replace('_', '-')
        printed = run_command(name, '--help').stdout
        assert printed.startswith(f'usage: colonnade {name} ') and '--cfg-options' in printed


def test_command_has_every_tool() -> None:
    own = {path.stem for path in (ROOT / 'tools').glob('*.py')
           if '@command(' in path.read_text()}  # yapf: disable
    assert {*TOOLS, 'completion'} == own - {'demo'}


@pytest.mark.skipif(not which('bash'), reason='no bash')
@pytest.mark.parametrize('words, expected', [
    (['compl'], {'complexity', 'completion'}),
    (['train', '--pretr'], {'--pretrained'}),
    (['test', 'sem_fpn/xcit_nano_12_p16_slim'
      ], {'sem_fpn/xcit_nano_12_p16_slim_ade20k', 'sem_fpn/xcit_nano_12_p16_slim_shapes'}),
    (['predict', LEAF, 'a_f'], {'a_file.pth'}),
    (['package', 'pu'], {'push', 'pull'}),
])
def test_completion_in_bash(words: list[str], expected: set[str], tmp_path: Path) -> None:
    (tmp_path / 'a_file.pth').touch()
    script = ('source <(colonnade completion bash) && COMP_WORDS=(colonnade "$@") COMP_CWORD=$# && '
              '_shtab_colonnade && printf "%s\\n" "${COMPREPLY[@]}"')
    path = f'{Path(sys.executable).parent}:{os.environ["PATH"]}'
    printed = subprocess.run(['bash', '-c', script, 'bash', *words], cwd=tmp_path, text=True,
                             env={**os.environ, 'PATH': path}, check=True,
                             capture_output=True).stdout  # yapf: disable
    assert set(printed.split()) == expected


def test_completion_in_zsh() -> None:
    printed = run_command('completion', 'zsh').stdout
    assert printed.startswith('#compdef colonnade') and '--max-megabytes' in printed


@pytest.mark.usefixtures('no_layout')
def test_train_evaluate_load_predict(shapes: Path, tmp_path: Path) -> None:
    cfg_options = {'train_cfg.max_iters': 1, 'train_cfg.val_interval': 1}
    for split in ('train', 'val', 'test'):
        cfg_options |= {
            f'{split}_dataloader.num_workers': 0,
            f'{split}_dataloader.persistent_workers': False,
        }
    options = dict(data_root=shapes / 'ade', work_dir=tmp_path / 'run', cfg_options=cfg_options)
    run = colonnade.train(LEAF, **options)
    checkpoint = tmp_path / 'run/iter_1.pth'
    assert run.last == str(checkpoint) and Path(run.best).parent == tmp_path / 'run'
    out = tmp_path / 'metrics.json'
    metrics = colonnade.evaluate(LEAF, checkpoint, out=out, **options)
    assert 0 <= metrics['mIoU'] <= 100
    content = json.loads(out.read_text())
    assert content['metrics'] == metrics and content['fused'] and content['amp'] is None
    image = next((shapes / 'ade/images/validation').iterdir())
    result = colonnade.load(LEAF, checkpoint).predict(image)
    other = colonnade.load(checkpoint).predict(image)  # with the config in the checkpoint
    assert (result.labels == other.labels).all()
    assert (result.labels == run.load(checkpoint).predict(image).labels).all()
    assert (run.load().source, repr(run)) == (run.best, f'Run({str(tmp_path / "run")!r})')
    table = run.to_pandas()
    assert table['iter'].tolist() == [1] and table['mIoU'].notna().all()
    assert '<h2>Metrics</h2>' in run._repr_html_()
    missing = colonnade.Run(tmp_path / 'missing')
    assert missing._repr_html_() is None
    with pytest.raises(FileNotFoundError, match='missing has no metrics.csv'):
        missing.to_pandas()


def test_invalid_options(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match='wrok_dir'):
        colonnade.train(config('sem_fpn'), wrok_dir=tmp_path)
    with pytest.raises(TypeError, match='wrok_dir'):
        colonnade.train('data', base_config=LEAF, wrok_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match='no such dataset: nowhere'):
        colonnade.train('nowhere', base_config=LEAF)
    with pytest.raises(ValueError, match='base_config requires a single process'):
        colonnade.train(tmp_path, base_config=LEAF, launcher='pytorch')
    (tmp_path / 'run.py').touch()
    with pytest.raises(ValueError, match='run.py already exists: pass it as config, without base'):
        colonnade.train(tmp_path, base_config=LEAF, work_dir=tmp_path / 'run')
    with pytest.raises(FileNotFoundError, match='no such work dir: nowhere'):
        colonnade.Run('nowhere').load()
    with pytest.raises(
            ValueError, match='is not a config: to train on a dataset, also pass base_config'):
        colonnade.train(tmp_path)
    for options, says in ((dict(data='a', masks='b'), 'pass only one of data, coco and masks'),
                          (dict(data='a', on_bad_data='skipp'), "on_bad_data must be .* 'skipp'"),
                          (dict(), 'pass the dataset as --data, --coco or --masks')):
        with pytest.raises(ValueError, match=says):
            colonnade.create_config(LEAF, out=tmp_path / 'a.py', **options)
    with pytest.raises(FileNotFoundError, match='no such config file'):
        colonnade.evaluate('sem_fpn/xcit_nano', 'a.pth')


def test_versions_for_bug_reports() -> None:
    printed = run_python('-m', 'colonnade', 'env')
    assert re.search(r'^torch +\d+\.\d+', printed, re.MULTILINE)
    assert re.search(r'^mmdet +\d+\.\d+.* \(onedl-mmdetection\)$', printed, re.MULTILINE)
    assert 'CPU ' in printed
    assert run_python('-m', 'colonnade', '--version') == f'colonnade {version("colonnade")}\n'
