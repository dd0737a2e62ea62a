"""A breach of a rule by a config or by data: what is wrong, where, and what would be right."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .rules import RULES, Effect, Severity


@dataclass(frozen=True)
class Finding:
    """Something that is wrong or odd.

    Attributes:
        rule: A key of :data:`~.rules.RULES`.
        message: Sentence that names the places and their values.
        places: Keys of the config such as ``model.neck.in_channels``, of two that do not agree
            both; or the file that it is about.
        fix: What would be right here, as an imperative; empty if only the rule knows that.
        id: ID or index of the image or annotation within its file. Defaults to none.
        effect: What training does with the data. Defaults to the rule's effect.
        cause: Error that code of the config's classes raised, if any did.

    Raises:
        ValueError: If there is no such rule.
    """
    rule: str
    message: str
    places: tuple[str, ...] = ()
    fix: str = ''
    id: Any = None
    effect: Effect = None  # type: ignore[assignment]  # the rule's, below
    cause: BaseException | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f'expected a rule of settings/rules.py, got {self.rule!r}')
        if self.effect is None:
            object.__setattr__(self, 'effect', RULES[self.rule].effect)

    @property
    def severity(self) -> Severity:
        """Severity of its rule."""
        return RULES[self.rule].severity

    def __str__(self) -> str:
        return f'{self.message}: {self.fix}' if self.fix else self.message

    def to_json(self) -> dict[str, Any]:
        """Return the content of JSON files, also under the keys that earlier versions wrote."""
        rule, fix = RULES[self.rule], self.fix or RULES[self.rule].fix
        content = dict(rule=self.rule, severity=self.severity, message=self.message,
                       places=list(self.places), fix=fix, effect=self.effect, page=rule.page,
                       id=None if self.id is None else str(self.id))  # yapf: disable
        return content | dict(says=self.message, kind=self.rule, fault=self.message, advice=fix,
                              file=self.places[0] if self.places else '')  # yapf: disable

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Finding:
        """Return the finding that :meth:`to_json` wrote.

        Raises:
            KeyError: If a key is missing; also ``TypeError`` and ``ValueError``.
        """
        return cls(content['rule'], content['message'], tuple(content['places']), content['fix'],
                   content['id'], content['effect'])  # yapf: disable


def errors_of(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with which no training starts."""
    return [finding for finding in findings if finding.severity == 'error']
