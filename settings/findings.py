"""What is wrong with a config: where, what, and what would be right."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal['error', 'warning', 'note']


@dataclass(frozen=True)
class Finding:
    """Something in a config that does not fit.

    Attributes:
        says: What it is, with the places and their values.
        places: Keys of the config that it is about, ``model.neck.in_channels``; of two that do not
            agree, both.
        fix: What would be right, as an imperative; empty if that is not known.
        severity: A training ends at an ``'error'`` before it starts, and goes on with a
            ``'warning'``. A ``'note'`` is what could not be checked.
        cause: Error that code of the config's classes raised, if any did.
    """
    says: str
    places: tuple[str, ...]
    fix: str = ''
    severity: Severity = 'error'
    cause: Exception | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f'{self.says}: {self.fix}' if self.fix else self.says


def errors_of(findings: Iterable[Finding]) -> list[Finding]:
    """Those with which no training starts."""
    return [finding for finding in findings if finding.severity == 'error']


def warnings_of(findings: Iterable[Finding]) -> list[Finding]:
    """Those with which a training goes on."""
    return [finding for finding in findings if finding.severity == 'warning']
