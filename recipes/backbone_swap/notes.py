"""What is said about a transplant: the reasons for what is set, and what is left to decide."""
from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Notes:
    """Sentences for the config that is written.

    Attributes:
        reasons: By the setting at the top of the config that they are about.
        undecided: What the user must decide.
    """
    reasons: dict[str, list[str]] = field(default_factory=dict)
    undecided: list[str] = field(default_factory=list)

    def reason(self, section: str, text: str) -> None:
        """Say why something below a setting is as it is."""
        self.reasons.setdefault(section, []).append(text)

    def leave(self, text: str) -> None:
        """Say what is left to decide."""
        self.undecided.append(text)
