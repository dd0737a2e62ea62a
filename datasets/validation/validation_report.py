"""Errors and warnings about a dataset, and descriptions of files in an unexpected format."""
from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from reprlib import Repr
from typing import Any

from colonnade.common.name_lists import format_names
from colonnade.settings.findings import Finding
from colonnade.settings.rules import RULES, Effect

MAX_SIMILAR = 20  # messages that differ only in numbers and paths; if there are more, ...
NUM_SHOWN = 10  # ... only this many are shown
MAX_KEPT = 1000  # findings per rule and effect in memory and in JSON; all are counted
#: rules of single images whose effect is not that their loading fails
SKIPPABLE = ('wrong-value', 'unknown-category', 'other-size')
YAML = "a YAML file, as in YOLO datasets"
FILE_TYPES = {
    '.yaml': YAML,
    '.yml': YAML,
    '.txt': 'a text file, as in YOLO datasets',
    '.xml': 'an XML file, as in Pascal VOC datasets',
}
FOLDER_TYPES = {
    '*.xml': 'a folder of Pascal VOC XML files',
    '*.txt': 'a folder of YOLO text files',
    '*.json': 'a folder: pass the JSON file in it',
    '*.png': 'a folder of images: pass label maps with --masks',
}
_values = Repr()
_values.maxstring = _values.maxother = _values.maxlong = 60
_values.maxlist = _values.maxtuple = 8


class Report:
    """Errors and warnings about a dataset.

    Attributes:
        findings: At most a thousand findings per rule and effect, but all of conversions.
        counts: Number of findings per rule and effect.
        num_skippable: Number of errors that ``--on-bad-data skip`` would avoid.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.counts: Counter[tuple[str, Effect]] = Counter()
        self.num_skippable = 0

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it unless its rule has too many."""
        key = finding.rule, finding.effect
        self.counts[key] += 1
        if finding.severity == 'error' and finding.rule != 'conversion-fault':
            self.num_skippable += finding.effect == 'sample' or finding.rule in SKIPPABLE
        if self.counts[key] <= MAX_KEPT or finding.rule.startswith('conversion-'):
            self.findings.append(finding)

    def add_error(self, text: str) -> None:
        """Add an error of a conversion, with which no config can be written."""
        self.add(Finding('conversion-fault', text))

    def add_skippable_error(self, text: str) -> None:
        """Add an error of a single image, which can be left out."""
        self.num_skippable += 1
        self.add_error(text)

    def add_warning(self, text: str) -> None:
        """Add what a conversion assumes, repairs or omits."""
        self.add(Finding('conversion-note', text))

    def add_result(self, text: str) -> None:
        """Add what a conversion has found or written, which is as expected."""
        self.add(Finding('conversion-result', text))

    def count_effects(self, *effects: Effect) -> int:
        """Return the number of findings with one of these effects."""
        return sum(count for (_, effect), count in self.counts.items() if effect in effects)

    @property
    def num_errors(self) -> int:
        """Number of errors."""
        return sum(n for (rule, _), n in self.counts.items() if RULES[rule].severity == 'error')

    @property
    def errors(self) -> list[str]:
        """Messages of all errors, shortened if many are similar."""
        return _shorten([each.message for each in self.findings if each.severity == 'error'])

    @property
    def warnings(self) -> list[str]:
        """Messages of all other findings, without duplicates, shortened if many are similar."""
        messages = [each.message for each in self.findings if each.severity != 'error']
        return _shorten(list(dict.fromkeys(messages)))

    @property
    def results(self) -> set[str]:
        """Warnings that only say what was found or written."""
        return {each.message for each in self.findings if each.rule == 'conversion-result'}

    def to_json(self, max_kept: int = MAX_KEPT) -> dict[str, Any]:
        """Return the findings, at most ``max_kept`` per rule and effect, and all counts."""
        counts = [dict(kind=rule, effect=effect, number=count)
                  for (rule, effect), count in self.counts.items()]  # yapf: disable
        remaining, findings = dict.fromkeys(self.counts, max_kept), []
        for finding in self.findings:
            remaining[finding.rule, finding.effect] -= 1
            if remaining[finding.rule, finding.effect] >= 0:
                findings.append(finding.to_json())
        return dict(counts=counts, findings=findings)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Report:
        """Return the report that :meth:`to_json` wrote.

        Raises:
            KeyError: If the content is malformed; also ``TypeError`` and ``ValueError``.
        """
        report = cls()
        report.findings = list(map(Finding.from_json, content['findings']))
        report.counts.update({(each['kind'], each['effect']): int(each['number'])
                              for each in content['counts']})  # yapf: disable
        return report


def _shorten(messages: list[str]) -> list[str]:
    similar: dict[str, list[str]] = {}
    for message in messages:
        # Similar messages have the same words, but other numbers, names and paths.
        words = ' '.join(word for word in message.split() if word.isalpha())
        similar.setdefault(words, []).append(message)
    lines = []
    for group in similar.values():
        if len(group) > MAX_SIMILAR:
            group = [*group[:NUM_SHOWN], f'and {len(group) - NUM_SHOWN} more of this type']
        lines += group
    return lines


def find_repeated(values: Iterable[Any]) -> list[Any]:
    """Return the values that occur more than once, in order."""
    return [value for value, count in Counter(values).items() if count > 1]


def abbreviate(value: Any) -> str:
    """Return a short text for a value of any type and size that was read from a file."""
    return _values.repr(value)


def describe_other_format(path: Path) -> str | None:
    """Return what a path is if it is obviously not a COCO file, or None."""
    if not os.path.isdir(path):
        return FILE_TYPES.get(path.suffix.lower()) if os.path.isfile(path) else None
    for pattern, description in FOLDER_TYPES.items():
        # Datasets keep such files in labels/ or Annotations/, perhaps by split.
        if any(next(path.glob(below + pattern), None) for below in ('', '*/', '*/*/')):
            return description
    return 'a folder'


def describe_json(content: Any) -> str:
    """Return what JSON is that is not in COCO format."""
    if isinstance(content, list):
        return 'a list, as COCO results are'
    if not isinstance(content, dict):
        return abbreviate(content)
    if 'shapes' in content:
        return 'a LabelMe file of one image'
    if 'type' in content and 'features' in content:
        return 'GeoJSON'
    return f'an object with {format_names(list(map(json.dumps, content))) or "no keys"}'
