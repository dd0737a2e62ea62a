"""Markdown pages of the project: code blocks, sentences, links and anchors."""
from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conftest import ROOT

PAGES = sorted([*ROOT.glob('*.md'), *ROOT.glob('docs/**/*.md'), ROOT / 'configs/README.md'])
MOST_WORDS = 30  # in a sentence
FENCE = re.compile(r'^( *)```(.*)\n((?:.*\n)*?)\1```$', re.MULTILINE)
NOT_RUN = re.compile(r'<!-- not run: (.+) -->\s*$')
ABBREVIATIONS = ('e.g.', 'i.e.', 'cf.', 'Fig.', 'Eq.')


@dataclass
class Block:
    """Fenced block of a page."""
    page: Path
    language: str
    code: str
    reason: str | None  # why it is not run, in a comment above it
    line: int

    def __str__(self) -> str:
        return f'{self.page.relative_to(ROOT)}:{self.line}'


def find_blocks(page: Path, language: str | None = None) -> list[Block]:
    """Return the fenced blocks of a page, all or in one language."""
    text, blocks = page.read_text(), []
    for found in FENCE.finditer(text):
        before = text[:found.start()]
        reason = NOT_RUN.search(before)
        blocks.append(
            Block(page, found[2].strip(), found[3], reason and reason[1],
                  before.count('\n') + 1))
    return [block for block in blocks if language in (None, block.language)]


def parse_commands(block: Block) -> list[list[str]]:
    """Return the words of each command of a block in ``sh``, without comments."""
    lines = block.code.replace('\\\n', ' ').splitlines()
    words = [[word for word in shlex.split(line, comments=True) if word != '&'] for line in lines]
    return [command for line in words for command in split(line, '&&') if command]


def split(words: list[str], separator: str) -> Iterator[list[str]]:
    while separator in words:
        at = words.index(separator)
        yield words[:at]
        words = words[at + 1:]
    yield words


def extract_prose(markdown: str) -> str:
    """Return the text of a page without code, comments, tables, headings and images."""
    text = re.sub(r'<!--.*?-->', '', FENCE.sub('', markdown), flags=re.DOTALL)
    text = re.sub(r'^ *(\||#|!\[).*$', '', text, flags=re.MULTILINE)
    text = re.sub(r'\[([^]]+)\]\([^)]+\)', r'\1', text)
    return re.sub(r'^ *([-*:]|\d+\.) ', '\n', text, flags=re.MULTILINE)  # items are paragraphs


def split_sentences(prose: str) -> Iterator[str]:
    """Yield the sentences of a text, in which code in backquotes is one word."""
    text = re.sub(r'(`+).+?\1', 'code', prose, flags=re.DOTALL)
    for paragraph in re.split(r'\n\s*\n', text):
        paragraph = ' '.join(paragraph.split())
        for short in ABBREVIATIONS:
            paragraph = paragraph.replace(short, short.replace('.', ''))
        yield from filter(None, re.split(r'(?<=[.!?])["*)]*\s+', paragraph))


def find_long_sentences(prose: str) -> list[str]:
    """Return sentences with too many words; a word has a letter or digit."""
    return [
        sentence for sentence in split_sentences(prose) if sum(
            bool(re.search(r'\w', word)) for word in sentence.split()) > MOST_WORDS
    ]


def iter_docstrings(module: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring, with a paragraph per argument and exception."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            text = re.sub(r'::\n\n((?: {4}.*)?\n)+', '.\n\n', text + '\n')  # code
            text = re.sub(r'^ {4}(?=[\w*, ]+: )', '\n\n', text, flags=re.MULTILINE)
            text = re.sub(r'^(Args|Returns|Raises|Attributes|Yields):$', '\n', text, flags=re.M)
            if re.search(r'^ {4}(colonnade|.*python) ', text, re.M):
                text = re.sub(r'^( {4}\S.*\n)+', '', text, flags=re.M)
            yield node.body[0].lineno, text


def find_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST write them."""
    text = FENCE.sub('', page.read_text())
    headings = re.findall(r'^#+ (.+)$', text, re.MULTILINE)
    return {re.sub(r'[^\w -]', '', heading).strip().lower().replace(' ', '-')
            for heading in headings}  # yapf: disable


def find_links(page: Path) -> Iterator[str]:
    """Yield the targets of links and images within the project."""
    text = FENCE.sub('', page.read_text())
    for target in re.findall(r'\]\(([^)\s]+)\)', text):
        if '://' not in target:
            yield target
