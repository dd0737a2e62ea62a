"""Findings: violations of a rule by a config or by data."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mmengine.config import Config

from .rules import RULES, Effect, Severity


@dataclass(frozen=True)
class Finding:
    """Violation of a rule.

    Attributes:
        rule: Key of :data:`~.rules.RULES`.
        message: Sentence with the config keys or files and their values.
        places: Config keys that contradict each other, such as ``model.neck.in_channels``, or the
            affected file.
        fix: Imperative that says how to fix it; empty if only the fix of the rule applies.
        id: ID or index of the image or annotation within its file. Defaults to none.
        effect: Effect on training. Defaults to the effect of the rule.
        cause: Error that code of the config's classes raised. Defaults to none.

    Raises:
        ValueError: If the rule does not exist.
    """
    rule: str
    message: str
    places: tuple[str, ...] = ()
    fix: str = ''
    id: Any = None
    effect: Effect = None  # type: ignore[assignment]  # set below
    cause: BaseException | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f'expected a rule from settings/rules.py, got {self.rule!r}')
        if self.effect is None:
            object.__setattr__(self, 'effect', RULES[self.rule].effect)

    @property
    def severity(self) -> Severity:
        """Severity of the rule."""
        return RULES[self.rule].severity

    def __str__(self) -> str:
        return f'{self.message}: {self.fix}' if self.fix else self.message

    def to_json(self) -> dict[str, Any]:
        """Return the JSON content, also under the keys of earlier versions."""
        rule, fix = RULES[self.rule], self.fix or RULES[self.rule].fix
        content = dict(rule=self.rule, severity=self.severity, message=self.message,
                       places=list(self.places), fix=fix, effect=self.effect, page=rule.page,
                       id=None if self.id is None else str(self.id))  # yapf: disable
        return content | dict(says=self.message, kind=self.rule, fault=self.message, advice=fix,
                              file=self.places[0] if self.places else '')  # yapf: disable

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Finding:
        """Return the finding of a JSON content; the inverse of :meth:`to_json`."""
        return cls(content['rule'], content['message'], tuple(content['places']), content['fix'],
                   content['id'], content['effect'])  # yapf: disable


def get_errors(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that prevent a training."""
    return [finding for finding in findings if finding.severity == 'error']


def drop_accepted(findings: Iterable[Finding], cfg: Config) -> list[Finding]:
    """Return the distinct findings, without warnings and notes that a config accepts.

    A config accepts those of all rules in its list ``accepted_findings``.
    """
    accepted = cfg.get('accepted_findings')
    rules = accepted if isinstance(accepted, (list, tuple)) else ()
    return [
        finding for finding in dict.fromkeys(findings)
        if finding.severity == 'error' or finding.rule not in rules
    ]
