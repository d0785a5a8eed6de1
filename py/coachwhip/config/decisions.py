"""What was decided about a configuration, and why."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Decision:
    """One decision.

    Attributes:
        code: Stable identifier in snake_case, for programs.
        field: The option that it is about.
        value: What it has from now on.
        reason: Why.
        warns: Whether the user should know before all else: a wish has no effect, or a bad one.
    """

    code: str
    field: str
    value: object
    reason: str
    warns: bool = False


@dataclass
class DecisionLog:
    """Decisions in the order they were made."""

    decisions: list[Decision] = field(default_factory=list)

    def add(self, code: str, name: str, value: object, reason: str) -> None:
        """Records a decision."""
        self.decisions.append(Decision(code, name, value, reason))

    def warn(self, code: str, name: str, value: object, line: str) -> None:
        """Records what the user should know, as one line that names the option."""
        self.decisions.append(Decision(code, name, value, line, warns=True))

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings, one line each."""
        return tuple(d.reason for d in self.decisions if d.warns)
