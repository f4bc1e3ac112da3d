"""The layout of a table, as a small YAML file: which runs are its rows, which tasks its columns.

title: Zero-shot after instruction tuning
columns: {PIQA: piqa_full, GSM8K: "gsm8k_full:exact_match,strict-match"}   # heading -> task, or task:metric
average: Avg
rows:                                   # label -> what must hold of a run's configuration
  LoRA: {method.name: causal, tuning.kind: lora}
  Bitune: {method.name: bitune}
groups: {gemma-2b: Gemma-2B}            # a block of rows for each model; its heading
baseline: LoRA
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from pipeline.config import merge, read_yaml
from pipeline.errors import UserError, did_you_mean
from pipeline.faults import explain
from pipeline.report.cost import COSTS
from pipeline.schema import Schema

FOLDER = Path(__file__).parent / "layouts"

CostName = Literal["hours", "tokens_per_second", "memory", "parameters", "prefill", "generation"]


class Layout(Schema):
    """The keys of a layout file. Everything left out is taken from the runs."""

    title: str = ""
    columns: dict[str, str] | None = None
    """Heading -> task or task:metric; null: every task of the runs."""
    average: str | None = "average"
    """Heading of the mean over the tasks; null: none."""
    cost: tuple[CostName, ...] = ()
    """Further columns: what training took, and answering."""
    rows: dict[str, dict[str, Any]] | None = None
    """Label -> dotted keys of the configuration and their values; null: the rows of the grid."""
    groups: dict[str, str] | None = None
    """Last part of the model's name -> heading of its block; other models are called as they are. null: no blocks."""
    block: str = "model"
    """What heads the column of the blocks."""
    arrange: Literal["tasks", "models", "methods"] = "tasks"
    """What the columns are. With models or methods the numbers are averages over the tasks."""
    baseline: str | None = None
    differences: Literal["average", "tasks", "none"] = "average"
    highlight: Annotated[int, Field(ge=0, le=2)] = 1
    """How many of the best numbers are set off: none, the best, or the second best too."""
    spread: Literal["std", "interval", "none"] = "std"
    decimals: Annotated[int, Field(ge=0, le=6)] = 1
    """Of percentages."""
    marks: dict[str, tuple[str, ...]] = {}
    """Further columns in front of the numbers: heading -> rows that get a mark."""
    reference: dict[str, dict[str, dict[str, str | float]]] = {}
    """Published numbers: heading of the block -> row -> column -> text."""

    @model_validator(mode="after")
    def _check(self) -> "Layout":
        rows = self.rows
        if rows is not None and self.baseline is not None and self.baseline not in rows:
            raise ValueError(f"baseline {self.baseline!r} is not one of the rows: {', '.join(rows)}")
        if self.arrange != "tasks" and (self.groups is None or self.average is None):
            raise ValueError(f"arrange: {self.arrange} needs groups and an average")
        self._check_columns()
        self._check_names("marks", [name for names in self.marks.values() for name in names])
        self._check_names("reference", [name for group in self.reference.values() for name in group])
        headings = [*(self.columns or {}), *([self.average] if self.average else []), *self.cost_headings]
        texts = [key for group in self.reference.values() for row in group.values() for key in row]
        if self.columns is not None and (odd := [key for key in texts if key not in headings]):
            raise ValueError(f"reference: there is no column {odd[0]!r}; there are {', '.join(headings)}")
        return self

    def _check_columns(self) -> None:
        """An average would count a task twice."""
        headings: dict[str, str] = {}
        for heading, task in (self.columns or {}).items():
            if (twin := headings.setdefault(task, heading)) != heading:
                raise ValueError(f"columns: {twin!r} and {heading!r} are both {task}")

    def _check_names(self, key: str, names: Sequence[str]) -> None:
        odd = [name for name in names if self.rows is not None and name not in self.rows]
        if odd:
            raise ValueError(f"{key}: {odd[0]!r} is not one of the rows: {', '.join(self.rows or ())}")

    @property
    def cost_headings(self) -> list[str]:
        return [COSTS[name].heading for name in self.cost]


PLAIN = Layout()
"""The table of a grid as it is."""


def load_layout(name: str) -> Layout:
    """A layout that is shipped (`table1`), or a YAML file.

    Raises:
        UserError: there is none, or a key in it is wrong.
    """
    path = FOLDER / f"{name}.yaml"
    if not path.exists():
        path = Path(name)
        if not path.suffix or not path.exists():
            known = shipped()
            raise UserError(f"--layout {name}: no such layout{did_you_mean(name, known)} (shipped: {', '.join(known)};"
                            " or a YAML file)")  # fmt: skip
    try:
        return Layout.model_validate(merge(read_yaml(path), path))
    except ValidationError as error:
        raise UserError(f"{path}: " + "; ".join(explain(error, Layout))) from None


def shipped() -> list[str]:
    """Names of the layouts that come with dualtune, in the order of the paper's tables."""
    names = [path.stem for path in FOLDER.glob("*.yaml") if not path.stem.startswith("_")]
    return sorted(names, key=lambda name: (len(name), name))
