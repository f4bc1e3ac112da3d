"""What the commands have in common: arguments, options, and a line for the user."""

import sys
from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of one run.", show_default=False)]
GridFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="YAML file of one run or of a grid (`rows:`, `axes:`).",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Changes to the file, such as training.epochs=2", show_default=False),
]
Processes = Annotated[int, typer.Option(min=1, help="That share one training on this machine, one a GPU.")]

Cluster = Annotated[
    Path | None,
    typer.Option(
        envvar="DUALTUNE_CLUSTER",
        metavar="FILE",
        help="Profile of the cluster, such as configs/clusters/generic.yaml.",
        show_default=False,
    ),
]
PartOption = Annotated[
    str | None,
    typer.Option(metavar="I/N", help="Do only the I-th of N shares, as one task of a job array.", show_default=False),
]


def tell(message: str) -> None:
    """One line for the user. Progress goes to stderr: stdout holds results."""
    print(message, file=sys.stderr, flush=True)
