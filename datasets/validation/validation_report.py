"""What is wrong with a data set, and what its files are where they are not what was asked for.

A *fault* breaks a rule of severity ``'error'``. A *remark* is any other finding: what mmdet and
mmseg pass over in silence, or what was assumed.
"""
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

MOST_OF_A_KIND = 20  # sentences that differ in numbers and paths alone
SHOWN_OF_A_KIND = 10  # of those, where there are more
KEPT_OF_A_KIND = 1000  # findings in memory and in JSON; all are counted
_values = Repr()
_values.maxstring = _values.maxother = _values.maxlong = 60
_values.maxlist = _values.maxtuple = 8


class Report:
    """What is wrong with a data set, one sentence each.

    Attributes:
        findings: Findings in their order, at most a thousand of each rule and effect but for those
            of conversions.
        counts: Number of findings of each rule and effect.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.counts: Counter[tuple[str, Effect]] = Counter()

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it unless there are many of its rule."""
        key = finding.rule, finding.effect
        self.counts[key] += 1
        if self.counts[key] <= KEPT_OF_A_KIND or finding.rule.startswith('conversion-'):
            self.findings.append(finding)

    def fault(self, text: str) -> None:
        """Add what no config can be written for."""
        self.add(Finding('conversion-fault', text))

    def remark(self, text: str) -> None:
        """Add what a conversion assumes, repairs or leaves out."""
        self.add(Finding('conversion-note', text))

    def number(self, *effects: Effect) -> int:
        """Return the number of findings that have one of these effects."""
        return sum(number for (_, effect), number in self.counts.items() if effect in effects)

    @property
    def num_faults(self) -> int:
        """Number of findings of severity ``'error'``."""
        return sum(n for (rule, _), n in self.counts.items() if RULES[rule].severity == 'error')

    @property
    def faults(self) -> list[str]:
        """All faults; of many of a kind the first, and how many more there are."""
        return _shortened([each.message for each in self.findings if each.severity == 'error'])

    @property
    def remarks(self) -> list[str]:
        """All remarks, each once; else as for :attr:`faults`."""
        texts = [each.message for each in self.findings if each.severity != 'error']
        return _shortened(list(dict.fromkeys(texts)))

    def to_json(self, most: int = KEPT_OF_A_KIND) -> dict[str, Any]:
        """Return the findings and their numbers for :meth:`from_json`, at most some of a kind."""
        counts = [dict(kind=rule, effect=effect, number=number)
                  for (rule, effect), number in self.counts.items()]  # yapf: disable
        left, findings = dict.fromkeys(self.counts, most), []
        for finding in self.findings:
            left[finding.rule, finding.effect] -= 1
            if left[finding.rule, finding.effect] >= 0:
                findings.append(finding.to_json())
        return dict(counts=counts, findings=findings)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Report:
        """Return the report that :meth:`to_json` wrote.

        Raises:
            KeyError: If it is none; also ``TypeError`` and ``ValueError``.
        """
        report = cls()
        report.findings = list(map(Finding.from_json, content['findings']))
        report.counts.update({(each['kind'], each['effect']): int(each['number'])
                              for each in content['counts']})  # yapf: disable
        return report


def _shortened(texts: list[str]) -> list[str]:
    kinds: dict[str, list[str]] = {}
    for text in texts:
        # numbers, names and paths differ within a kind, words do not
        kind = ' '.join(word for word in text.split() if word.isalpha())
        kinds.setdefault(kind, []).append(text)
    lines = []
    for alike in kinds.values():
        if len(alike) > MOST_OF_A_KIND:
            more = len(alike) - SHOWN_OF_A_KIND
            alike = [*alike[:SHOWN_OF_A_KIND], f'and {more} more of this kind']
        lines += alike
    return lines


def find_repeated(values: Iterable[Any]) -> list[Any]:
    """What occurs more than once, in order."""
    return [value for value, count in Counter(values).items() if count > 1]


def abbreviate(value: Any) -> str:
    """A value of a file, shortened: it may be of any kind and size."""
    return _values.repr(value)


def other_format(path: Path) -> str | None:
    """What a file or folder is that does not hold COCO's JSON, if that can be seen."""
    if os.path.isdir(path):
        for pattern, what in (('*.xml', "a folder of Pascal VOC's XML"),
                              ('*.txt', "a folder of YOLO's text files"),
                              ('*.json', 'a folder: name the JSON file in it'),
                              ('*.png', 'a folder of images: label maps are for --masks')):
            # data sets keep them in labels/ or Annotations/, perhaps by split
            if any(next(path.glob(below + pattern), None) for below in ('', '*/', '*/*/')):
                return what
        return 'a folder'
    kinds = {
        '.yaml': "a YAML file, as YOLO's data sets have",
        '.yml': "a YAML file, as YOLO's data sets have",
        '.txt': "a text file, as YOLO's data sets have",
        '.xml': "an XML file, as Pascal VOC's data sets have",
    }
    return kinds.get(path.suffix.lower()) if os.path.isfile(path) else None


def json_layout(content: Any) -> str:
    """What JSON is that is not in COCO's form."""
    if isinstance(content, list):
        return "a list, as files of COCO's results are"
    if not isinstance(content, dict):
        return abbreviate(content)
    if 'shapes' in content:
        return "one image's shapes, as LabelMe writes them"
    if 'type' in content and 'features' in content:
        return 'GeoJSON'
    return f'an object of {format_names(list(map(json.dumps, content))) or "nothing"}'
