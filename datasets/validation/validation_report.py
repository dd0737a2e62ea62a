"""What is wrong with a data set, and what its files are where they are not what was asked for.

A *fault* stops training or evaluation, or would let it learn something else than what is meant. A
*remark* is what mmdet and mmseg pass over in silence, or what was assumed.
"""
from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from reprlib import Repr
from typing import Any

from colonnade.common.name_lists import format_names

from .issue_types import KINDS, NO_KIND, Effect

MOST_OF_A_KIND = 20  # sentences that differ in numbers and paths alone
SHOWN_OF_A_KIND = 10  # of those, where there are more
KEPT_OF_A_KIND = 1000  # findings in memory and in JSON; all are counted
_values = Repr()
_values.maxstring = _values.maxother = _values.maxlong = 60
_values.maxlist = _values.maxtuple = 8


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong or odd.

    Attributes:
        text: The sentence.
        kind: A key of :data:`~.issue_types.KINDS`; empty for what has none.
        file: The file that it is about.
        id: Of the image or annotation in the file of annotations.
        effect: What training does with it.
    """
    text: str
    kind: str = ''
    file: str = ''
    id: Any = None
    effect: Effect = 'loading'

    @property
    def advice(self) -> str:
        """What to do."""
        return KINDS.get(self.kind, NO_KIND).advice


class Report:
    """What is wrong with a data set, one sentence each.

    Attributes:
        findings: Those with a kind, at most a thousand of each.
        counts: How many of each kind and effect there are.
    """

    def __init__(self) -> None:
        self._faults: list[str] = []
        self._remarks: list[str] = []
        self.findings: list[Finding] = []
        self.counts: Counter[tuple[str, Effect]] = Counter()
        self.num_faults = 0

    def fault(self,
              text: str,
              kind: str = '',
              *,
              file: str | Path = '',
              id: Any = None,
              effect: Effect | None = None) -> None:
        """Take a fault.

        Args:
            text: The sentence.
            kind, file, id: See :class:`Finding`.
            effect: That of the kind if not given.
        """
        self.num_faults += 1
        if self._find(text, kind, str(file), id, effect):
            self._faults.append(text)

    def remark(self, text: str, kind: str = '', *, file: str | Path = '', id: Any = None) -> None:
        """Take a remark; see :meth:`fault`."""
        if self._find(text, kind, str(file), id, 'none'):
            self._remarks.append(text)

    def _find(self, text: str, kind: str, file: str, id: Any, effect: Effect | None) -> bool:
        """Count what is of a kind; returns whether to keep its sentence."""
        effect = effect or KINDS.get(kind, NO_KIND).effect
        self.counts[kind, effect] += 1
        keep = not kind or self.counts[kind, effect] <= KEPT_OF_A_KIND
        if keep:
            self.findings.append(Finding(text, kind, file, id, effect))
        return keep

    def number(self, *effects: Effect) -> int:
        """How many findings have one of these effects."""
        return sum(number for (_, effect), number in self.counts.items() if effect in effects)

    def of_effect(self, *effects: Effect) -> list[Finding]:
        """The findings that are kept of some effects."""
        return [finding for finding in self.findings if finding.effect in effects]

    @property
    def faults(self) -> list[str]:
        """All faults; of many of a kind the first, and how many more there are."""
        return _shortened(self._faults)

    @property
    def remarks(self) -> list[str]:
        """All remarks, each once; else as for :attr:`faults`."""
        return _shortened(list(dict.fromkeys(self._remarks)))

    def as_json(self, most: int = KEPT_OF_A_KIND) -> dict[str, Any]:
        """The findings and how many there are, as :meth:`from_json` takes them.

        Args:
            most: Findings of a kind.
        """
        counts = [[*key, number] for key, number in self.counts.items()]
        left, findings = dict.fromkeys(self.counts, most), []
        for finding in self.findings:
            left[finding.kind, finding.effect] -= 1
            if left[finding.kind, finding.effect] >= 0:
                findings.append(asdict(finding))
        return dict(counts=counts, findings=findings)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Report:
        """A report as :meth:`as_json` gave it, but for the difference of faults and remarks.

        Raises:
            KeyError: If it is none; also ``TypeError`` and ``ValueError``.
        """
        report = cls()
        report.findings = [Finding(**finding) for finding in content['findings']]
        report.counts.update({(kind, effect): int(n) for kind, effect, n in content['counts']})
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


def repeated(values: Iterable[Any]) -> list[Any]:
    """What occurs more than once, in order."""
    return [value for value, count in Counter(values).items() if count > 1]


def shown(value: Any) -> str:
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
        return shown(content)
    if 'shapes' in content:
        return "one image's shapes, as LabelMe writes them"
    if 'type' in content and 'features' in content:
        return 'GeoJSON'
    return f'an object of {format_names(list(map(json.dumps, content))) or "nothing"}'
