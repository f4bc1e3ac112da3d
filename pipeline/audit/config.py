"""Configuration of the audit: above which shares of rows it fails."""

from typing import Annotated

from pydantic import Field

from pipeline.schema import Schema

Percent = Annotated[float, Field(ge=0, le=100)]


class MaxPercentConfig(Schema):
    """Percent of rows; null: any."""

    lost: Percent | None = 20.0
    """Rejected or dropped, of the rows read. All others are of the rows kept."""
    no_target: Percent | None = 0.0
    """No label but EOS."""
    cut_answers: Percent | None = 0.0
    """As long as `data.max_tokens` allows, and without EOS."""
    missing_eos: Percent | None = 0.0
    """The last label is not EOS."""
    double_bos: Percent | None = 0.0
    """More than one BOS in front."""
    boundary_merges: Percent | None = 5.0
    """A token reaches from the prompt into the answer."""
    duplicates: Percent | None = 5.0
    """Equal to an earlier row, token by token."""
    overlaps: Percent | None = 1.0
    """Words shared with an evaluation set."""


class AuditConfig(Schema):
    """When `dualtune audit` ends with status 1."""

    max_percent: MaxPercentConfig = MaxPercentConfig()
