"""The filters of a run, opened: what each needs is read and checked before any row is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.evaluate.config import EvaluationConfig
from pipeline.prepare.evaluation_sets import EvaluationSets, set_configs
from pipeline.prepare.example import Example, Rendered
from pipeline.prepare.filter_config import FiltersConfig, RangeConfig
from pipeline.prepare.record import Fault
from pipeline.prepare.text_filters import Check, text_filters
from pipeline.prepare.tokens import Tokens, answer_spans
from pipeline.prepare.user_function import UserFunction, load_function
from pipeline.prepare.words import texts_of


@dataclass(frozen=True)
class Filters:
    """What is dropped of the rows that could be used. Duplicates are found later, once all rows have been seen."""

    config: FiltersConfig
    checks: Sequence[Check] = ()
    sets: EvaluationSets | None = None
    function: UserFunction | None = None

    @classmethod
    def open(cls, config: FiltersConfig, evaluation: EvaluationConfig) -> "Filters":
        """
        Raises:
            UserError: a pattern, a script, the function or an evaluation set can't be used.
        """
        function = load_function(config.function, "data.filters.function") if config.function else None
        checks = text_filters(config, function)
        overlap = config.overlap
        if overlap.mode == "ignore":
            return cls(config, checks, None, function)
        return cls(config, checks, EvaluationSets.open(set_configs(evaluation, overlap.files), overlap.ngram), function)

    def identity(self) -> dict[str, Any]:
        """What the result depends on; settings of filters that are off are left out."""
        values = self.config.model_dump(mode="json")
        language, duplicates, overlap = values["language"], values["duplicates"], values["overlap"]
        return {
            **values,
            "language": language if language["scripts"] else None,
            "duplicates": duplicates if duplicates["near"] else duplicates["exact"],
            "overlap": [overlap["mode"], overlap["ngram"], self.sets.identity()] if self.sets else None,
            "function": [self.function.name, self.function.source] if self.function else None,
        }

    def check_text(self, example: Example, text: Rendered) -> None:
        """Raise a Fault for a row that is dropped by its text."""
        for check in self.checks:
            check(example, text)

    def overlap(self, example: Example) -> str | None:
        """The evaluation set that shares an n-gram with the row.

        Raises:
            Fault: such rows are dropped.
        """
        found = self.sets.overlap(texts_of(example)) if self.sets else None
        if found is None:
            return None
        name, gram = found
        if self.config.overlap.mode == "drop":
            raise Fault(f"overlaps evaluation set {name}", gram)
        return name

    def check_tokens(self, tokens: Tokens) -> None:
        """Raise a Fault for a row that is dropped by its numbers of tokens."""
        whole = len(tokens.input_ids)
        answer = sum(end - start for start, end in answer_spans(tokens))
        _check_range("row", whole, self.config.whole_tokens)
        _check_range("prompt", whole - answer, self.config.prompt_tokens)
        _check_range("answer", answer, self.config.answer_tokens)


def _check_range(what: str, count: int, allowed: RangeConfig) -> None:
    if allowed.min is not None and count < allowed.min:
        raise Fault(f"{what} of fewer than {allowed.min} tokens", f"{count} tokens")
    if allowed.max is not None and count > allowed.max:
        raise Fault(f"{what} of more than {allowed.max} tokens", f"{count} tokens")
