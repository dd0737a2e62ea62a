"""The pages: their commands run or are checked, links lead somewhere, sentences are short."""
from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
import yaml
from conftest import NO_WORKERS, ROOMS, ROOT, run_python
from helpers.pages import (PAGES, Block, extract_prose, find_anchors, find_blocks, find_links,
                           find_long_sentences, iter_docstrings, parse_commands)
from helpers.synthetic_data import draw_instances

from colonnade.backbones import XCiT
from colonnade.configs import find_config
from colonnade.settings.overrides import merge_options
from colonnade.settings.reading import read_config

README, QUICKSTART = ROOT / 'README.md', ROOT / 'docs/quickstart.md'
#: tables that docs/conf.py makes
GENERATED = {'{options}', '{commands}', '{configs}', '{formats}', '{backbones}', '{faults}'}
LANGUAGES = {'sh', 'python', 'text', 'yaml', '{toctree}', '{eval-rst}', '{include}', '{csv-table}'
             } | GENERATED
SHORT = [
    '--cfg-options', 'train_cfg.max_iters=2', 'train_cfg.val_interval=2',
    'default_hooks.checkpoint.interval=1', 'train_dataloader.batch_size=2', *NO_WORKERS[:2]
]
TINY = {  # tool -> options behind those of the page, for runs of seconds
    'make_shapes': ['--num-train', '4', '--num-val', '2', '--size', '64'],
    'train': SHORT,
    'test': ['--cfg-options', *NO_WORKERS[2:]],
}


def all_blocks(language: str) -> list[Block]:
    return [block for page in PAGES for block in find_blocks(page, language)]


def test_the_readme_is_short() -> None:
    """Code and tables count too."""
    assert len(README.read_text().split()) <= 800


def test_the_docs_are_short() -> None:
    """Tables that are generated from the code do not count."""
    words = {path: len(path.read_text().split()) for path in ROOT.glob('docs/**/*.md')}
    assert sum(words.values()) <= 20000, sorted(words.items(), key=lambda item: -item[1])


def test_sentences_are_short() -> None:
    found = {page: find_long_sentences(extract_prose(page.read_text())) for page in PAGES}
    assert {page: long for page, long in found.items() if long} == {}


def test_sentences_of_docstrings_are_short() -> None:
    found = {
        str(module.relative_to(ROOT)): long
        for room in (*ROOMS, 'tests') if room != 'configs' for module in (ROOT / room).rglob('*.py')
        for _, text in iter_docstrings(module) if (long := find_long_sentences(text))
    }
    assert found == {}


def test_long_sentences_are_found() -> None:
    long = 'word ' * 31
    for text in (long, f'Short. {long}end.', f'- item\n- {long}\n', f'`code` and ({long})'):
        assert len(find_long_sentences(extract_prose(text))) == 1
    for text in ('word ' * 30, f'| {long} |', f'# {long}', f'```sh\n{long}\n```', f'`{long}`'):
        assert find_long_sentences(extract_prose(text)) == []


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for link in find_links(page):
            path, _, anchor = link.partition('#')
            target = page.parent / path if path else page
            assert target.exists(), (page, link)
            assert not anchor or anchor in find_anchors(target), (page, link)


def test_blocks_say_what_they_are() -> None:
    for page in PAGES:
        languages = {block.language.partition(' ')[0] for block in find_blocks(page)}
        assert languages <= LANGUAGES, page


def test_tables_of_options_name_some_that_exist() -> None:
    tables = [block for page in PAGES for block in find_blocks(page)
              if block.language.startswith('{options} ')]  # yapf: disable
    for block in tables:
        module, _, name = block.language.split()[1].rpartition('.')
        options = getattr(import_module(module), name)
        assert set(block.code.split()) <= set(options.__dataclass_fields__), block


class Parsed(Exception):
    """Carries the parser of a tool out of it."""


@pytest.fixture
def parser_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], argparse.ArgumentParser]:
    """The parser that a tool builds."""

    def stop(parser: argparse.ArgumentParser, *_: object) -> None:
        raise Parsed(parser)

    def build(tool: str) -> argparse.ArgumentParser:
        module = import_module(f'colonnade.tools.{tool}')
        with monkeypatch.context() as patch:
            for name in ('parse_known_args', 'parse_known_intermixed_args'):
                patch.setattr(argparse.ArgumentParser, name, stop)
            with pytest.raises(Parsed) as found:
                module.main()
        return found.value.args[0]

    return build


def tool_of(command: list[str]) -> tuple[str | None, list[str]]:
    """The tool of ours that a command starts, in whatever way, and its arguments."""
    if 'colonnade' in command[:-1]:  # torchrun starts it with -m
        index = command.index('colonnade') + 1
        if command[index] != 'configs':
            return command[index].replace('-', '_'), command[index + 1:]
    for index, word in enumerate(command):
        if found := re.fullmatch(r'tools/(\w+)\.py|colonnade\.tools\.(\w+)', word):
            return found[1] or found[2], command[index + 1:]
    return None, []


def check_config_and_options(args: argparse.Namespace) -> None:
    """Check that a shipped config exists, by path or by name, and that its settings are read."""
    configs = (str(getattr(args, name, None) or '') for name in ('config', 'base_config', 'leaf'))
    config = next(filter(None, configs), '')
    if not re.fullmatch(r'configs/.+|\w+/\w+', config):
        return
    cfg = read_config(find_config(Path(config)))
    if options := getattr(args, 'cfg_options', None):
        merge_options(cfg, options)


@pytest.mark.parametrize('block', all_blocks('sh'), ids=str)
def test_commands_are_possible(block: Block, parser_of: Callable) -> None:
    """Of our tools, options and settings exist. Others run here, or a comment says why not."""
    targets = re.findall(r'^([\w-]+):', (ROOT / 'Makefile').read_text(), re.MULTILINE)
    for command in parse_commands(block):
        tool, arguments = tool_of(command)
        if tool:
            check_config_and_options(parser_of(tool).parse_args(arguments))
        elif command[0] == 'make':
            assert command[1] in targets
        elif command[:2] == ['python', '-c'] and not block.reason:
            assert Path(run_python('-c', command[2]).strip().splitlines()[-1]).is_dir()
        else:
            known = command == ['.', '.venv/bin/activate'
                                ] or command[:2] == ['colonnade', 'configs']
            assert block.reason or known, command


@pytest.mark.parametrize(
    'block',
    [block for block in all_blocks('python') if block.page != QUICKSTART and not block.reason],
    ids=str)
def test_python_prints_what_the_page_says(block: Block, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.code, str(block), 'exec'), {})
    behind = block.page.read_text().split(block.code, 1)[1]
    if shown := re.match(r'```\n\n```text\n((?:.*\n)*?)```', behind):
        assert printed.getvalue() == shown[1]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
          run_tool: Callable) -> Callable[[list[str]], None]:
    """Run commands of a page in a folder that looks like the repository's, in seconds each."""
    for folder in ('configs', 'tools'):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)

    def run(command: list[str]) -> None:
        tool, arguments = tool_of(command)
        if tool:
            options = TINY.get(tool, [])
            if '--resume' in arguments:
                options = [option.replace('max_iters=2', 'max_iters=3') for option in options]
            run_tool(tool, *arguments, *options)

    return run


@pytest.mark.slow
def test_the_quickstart(start: Callable, tmp_path: Path) -> None:
    """Every step, on a tiny dataset."""
    for block in find_blocks(QUICKSTART):
        if block.language == 'sh' and not block.reason:
            for command in parse_commands(block):
                start(command)
    for folder in ('predictions/visualizations', 'compared/*/side_by_side'):
        assert list(tmp_path.glob(f'{folder}/*.*'))
    block, = [block for block in find_blocks(QUICKSTART, 'python') if not block.reason]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(block.code, str(block), 'exec'), {})
    assert re.search(r'^\(\d+, 4\) \(.*\)$', printed.getvalue(), re.MULTILINE)
    assert Path('prediction.png').is_file()


def test_the_five_commands(start: Callable, tmp_path: Path) -> None:
    """With the slim config and a file of weights in the place of a download."""
    draw_instances(tmp_path)
    (tmp_path / 'images').mkdir()
    for split in ('train', 'val'):
        (tmp_path / split).rename(tmp_path / 'images' / split)
    torch.save(XCiT('nano_12_p16').state_dict(), 'backbone.pth')
    block = find_blocks(README, 'sh')[0]
    code = block.code.replace('small_12_p16_3x', 'nano_12_p16_slim')
    block.code = re.sub(r'(--pretrained) \S+', r'\1 backbone.pth', code)
    for command in parse_commands(block):
        start(command)
    assert len(list(tmp_path.glob('predictions/visualizations/*.*'))) == 2
    lines, = [block for block in find_blocks(README, 'python') if 'colonnade.load' in block.code]
    Path('image.jpg').symlink_to(min(Path('images/val').iterdir()))
    exec(compile(lines.code, str(lines), 'exec'), {})
    assert Path('prediction.png').is_file()


def test_names_of_weights_are_timms() -> None:
    from timm import list_pretrained
    for page in PAGES:
        text = page.read_text()
        for name in re.findall(r'\b((?:xcit|cait|resmlp)_\w+\.fb_\w+)', text):
            archs = ['xxs24', 'tiny_12_p8', 'xxs24_224']  # of CaiT, XCiT
            assert {name.replace('ARCH', arch) for arch in archs} & set(list_pretrained()), name


def test_the_citation_is_yaml() -> None:
    cited = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
    assert cited['license'] == 'Apache-2.0'
    assert f"version = {cited['version']}" in (ROOT / 'setup.cfg').read_text()


@pytest.mark.parametrize('name', ['pyramid', 'mixing'])
def test_figures_are_what_is_drawn(name: str) -> None:
    figure = ROOT / f'docs/images/{name}.svg'
    assert figure.read_text() == run_python('docs/draw_figures.py', name)


@pytest.mark.slow
def test_the_pages_are_built(tmp_path: Path) -> None:
    """As make docs does; its generator lies in build/ or in the environment."""
    paths = [str(ROOT / 'build/docs-generator'), os.environ.get('PYTHONPATH', '')]
    environ = {**os.environ, 'PYTHONPATH': os.pathsep.join(paths)}
    python = [sys.executable, '-m', 'sphinx']
    if subprocess.run([*python, '--version'], env=environ, capture_output=True).returncode:
        pytest.skip('no Sphinx: run make docs once')
    done = subprocess.run([*python, '-W', '--keep-going', '-n', '-q', ROOT / 'docs', tmp_path],
                          env=environ,
                          capture_output=True,
                          text=True)
    assert not done.returncode, done.stderr
