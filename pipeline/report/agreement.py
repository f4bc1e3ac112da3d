"""Which numbers may stand in one row or one column: those that were measured with the same."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from pipeline.report.record import Measurement, Missing, Outcome

Facts = Callable[[Measurement], dict[str, Any]]
"""What must be equal, by name."""


def agreeing(
    outcomes: Sequence[Outcome], group: Callable[[Outcome], Hashable], facts: Facts, where: str
) -> list[Outcome]:
    """Set aside the numbers of each group that were measured with something else than most of its full evaluations
    (without any, of its limited ones). Of two halves of a group neither counts: nobody can tell which is right.

    Args:
        where: what a group is, for the reasons.
    """
    groups: dict[Hashable, list[Measurement]] = defaultdict(list)
    for outcome in outcomes:
        if not isinstance(outcome, Missing):
            groups[group(outcome)].append(outcome)
    usual = {key: _usual(measured, facts) for key, measured in groups.items()}
    return [o if isinstance(o, Missing) else _checked(o, facts(o), usual[group(o)], where) for o in outcomes]


def _usual(measured: Sequence[Measurement], facts: Facts) -> list[dict[str, Any]]:
    """The facts of most of them; several where equally many have each."""
    found = [facts(one) for one in measured if one.is_full] or [facts(one) for one in measured]
    counts = Counter(map(repr, found))
    distinct = {repr(one): one for one in found}
    return [one for key, one in distinct.items() if counts[key] == max(counts.values())]


def _checked(measured: Measurement, facts: dict[str, Any], usual: list[dict[str, Any]], where: str) -> Outcome:
    if usual == [facts]:
        return measured
    other = next(one for one in usual if one != facts)
    words = f"as many of {where} have" if facts in usual else f"{where} has"
    odd = [f"{name} {_shown(facts[name])}, {words} {_shown(other[name])}" for name in facts
           if facts[name] != other[name]]  # fmt: skip
    return measured.missing(f"not comparable: {'; '.join(odd)}")


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
