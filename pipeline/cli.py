"""The command line. Heavy libraries are imported by the command that needs them, so that help is instant."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.errors import UserError
from pipeline.quiet import debugging, silence

app = typer.Typer(
    name="dualtune",
    help="Fine-tune language models that read the prompt differently from the answer, and tabulate a grid of runs.",
    epilog="Start here: `dualtune doctor`, then `dualtune run configs/quickstart.yaml --dry-run`.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="Look at configurations without running anything.", no_args_is_help=True)
app.add_typer(config_app, name="config")
show_app = typer.Typer(help="Draw what methods are made of.", no_args_is_help=True)
app.add_typer(show_app, name="show")
verify_app = typer.Typer(help="Prove on this machine what dualtune promises.", no_args_is_help=True)
app.add_typer(verify_app, name="verify")

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of one run.", show_default=False)]
GridFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="YAML file of one run or of a grid (it has `rows:`).", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Changes to the file, such as training.epochs=2", show_default=False),
]
Processes = Annotated[int, typer.Option(min=1, help="That share one training on this machine, one a GPU.")]


def tell(message: str) -> None:
    """One line for the user. Progress goes to stderr: stdout holds results."""
    print(message, file=sys.stderr, flush=True)


@app.command(epilog="Example: dualtune prepare configs/bitune/csqa.yaml data.max_tokens=256")
def prepare(config: ConfigFile, overrides: Overrides = None) -> None:
    """Read, check, template and tokenise the training data into the shared cache."""
    _stage("prepare", config, overrides)


@app.command(epilog="Example: dualtune train configs/bitune/csqa.yaml training.epochs=2 seed=43")
def train(config: ConfigFile, overrides: Overrides = None, processes: Processes = 1) -> None:
    """Train one run, going on from its newest checkpoint; what is prepared or trained already is not repeated.

    Started by torchrun, accelerate or srun, each process is one rank of the run.
    """
    from pipeline.train.environment import rank_variables

    if rank_variables(os.environ):
        if processes > 1:
            raise UserError(f"--processes={processes}: the launcher has started this process as one of several already")
        raise typer.Exit(_rank(config, overrides))
    _stage("train", config, overrides, processes)


def _rank(path: Path, overrides: list[str] | None) -> int:
    from pipeline.config import load_config
    from pipeline.run_folder import RunFolder
    from pipeline.train.spawn import train_as_rank

    config = load_config(path, overrides or ())
    return train_as_rank(config, RunFolder.of(config), tell)


@app.command(epilog="Example: dualtune evaluate configs/bitune/csqa.yaml evaluation.limit=100")
def evaluate(
    config: ConfigFile,
    overrides: Overrides = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes that share the work, on a GPU each.")] = 1,
    share: Annotated[
        str | None,
        typer.Option(
            metavar="I/N", help="Answer only the I-th of N shares, as one task of a job array.", show_default=False
        ),
    ] = None,
) -> None:
    """Score the trained model of one run (tuning=none: the pretrained one) on its evaluation tasks.

    Killed, it goes on after the last answers. Of N processes with --share 1/N to N/N the last one writes the results.
    """
    if share is None:
        _stage("evaluate", config, overrides, processes=processes)
    elif processes > 1:
        raise UserError("--share and --processes: give one of them")
    else:
        _share(share, config, overrides)


@app.command(
    "lm-eval",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    epilog="Example: dualtune lm-eval run --model dualtune --model_args pretrained=runs/RUN/model --tasks hellaswag",
)
def lm_eval(arguments: typer.Context) -> None:
    """lm-eval's own command line with all its options; `--model dualtune` reads any model of ours, or a base model."""
    from pipeline.evaluate.plugin import run as run_harness

    run_harness(arguments.args)


def _stage(stage: Any, path: Path, overrides: list[str] | None, processes: int = 1) -> None:
    from pipeline.config import load_config
    from pipeline.run_folder import RunFolder
    from pipeline.stages import run_missing

    config = load_config(path, overrides or ())
    folder = RunFolder.of(config)
    run_missing(config, folder, tell, (stage,), processes)
    print(folder.root)


def _share(share: str, path: Path, overrides: list[str] | None) -> None:
    from pipeline.config import load_config
    from pipeline.run_folder import RunFolder
    from pipeline.stages import run_share

    config = load_config(path, overrides or ())
    folder = RunFolder.of(config)
    run_share(config, folder, share, tell)
    print(folder.root)


@app.command(epilog="Example: dualtune run configs/quickstart.yaml training.epochs=2 seeds=[42,43,44]")
def run(
    file: GridFile,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time on this machine.")] = 1,
    processes: Processes = 1,
    report: Annotated[bool, typer.Option(help="End with the table.")] = True,
) -> None:
    """All stages of one run or of a grid, on this machine, then the table. What is complete is skipped.

    Stop it at any time: the same command goes on where it stopped.
    """
    from launch.command import run_grid
    from launch.grid import load_grid

    grid = load_grid(file, overrides or ())
    raise typer.Exit(run_grid(grid, jobs=jobs, dry_run=dry_run, with_report=report, tell=tell, processes=processes))


@app.command(
    epilog="Examples: dualtune report configs/quickstart.yaml    dualtune report runs/*    "
    "dualtune report configs/bitune/table1_*.yaml --layout table1 --reference"
)
def report(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE... [KEY=VALUE]... | FOLDER...",
            help="Run or grid files with overrides, or run folders.",
            show_default=False,
        ),
    ],
    layout: Annotated[
        str | None,
        typer.Option(help="Rows and columns of a table of the paper (table1), or a YAML file.", show_default=False),
    ] = None,
    reference: Annotated[bool, typer.Option("--reference", help="The paper's numbers beside ours.")] = False,
    output: Annotated[Path | None, typer.Option(help="Folder for the written tables.", show_default=False)] = None,
    watch: Annotated[
        int | None,
        typer.Option(min=1, metavar="SECONDS", help="Do it again this often, until all is there.", show_default=False),
    ] = None,
) -> None:
    """The table of finished runs: mean ± deviation over seeds, differences to the baseline, what is missing and why."""
    from launch.tables import read_source, write_report
    from launch.watch import follow

    if watch is None:
        write_report(read_source(source), layout, reference, output)
    else:
        follow(lambda: write_report(read_source(source), layout, reference, output), watch, tell)


@app.command(epilog="Example: dualtune compare runs/RUN1 runs/RUN2 --documents 20")
def compare(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="Another run folder.", show_default=False)],
    documents: Annotated[int, typer.Option(min=0, help="Documents to show of each task.")] = 5,
) -> None:
    """In what two runs differ: configuration, data, training, and the documents that only one of them got right."""
    from launch.tables import terminal
    from pipeline.report.two_runs import compare_runs, render

    terminal().print(render(compare_runs(first, second), documents), highlight=False)


@app.command(epilog='Example: dualtune generate models/SmolLM2-135M-Instruct --prompt "What is the capital of France?"')
def generate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Trained model folder (RUN/model) or base model.", show_default=False)
    ],
    prompt: Annotated[
        list[str] | None, typer.Option(help="The instruction; may be given several times.", show_default=False)
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="File with one more instruction, however long.", show_default=False)
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, max=100.0, help="0: always the likeliest token.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the sampling, when temperature is above 0.")] = 42,
    template: Annotated[
        str | None, typer.Option(help="Template of the prompt; default: the one trained with.", show_default=False)
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="How a base model reads the prompt, e.g. slippery.", show_default=False)
    ] = None,
    system: Annotated[str, typer.Option(help="System message, in the chat template.", show_default=False)] = "",
    max_length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens in all, also beyond those the model was made for.", show_default=False),
    ] = None,
) -> None:
    """Answer instructions with a trained model or a base model, in the template of its training."""
    from pipeline.answer import answer

    prompts = [*(prompt or []), *([_text_of(prompt_file)] if prompt_file else [])]
    if not prompts:
        raise UserError("no instruction: give --prompt or --prompt-file")
    for text in answer(model, prompts, max_new_tokens, temperature, seed, template, method, system, max_length):
        print(text)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})") from None


@app.command()
def tasks() -> None:
    """The evaluation tasks of ours. Those of lm-eval can be named too: `lm_eval ls tasks` lists them."""
    from pipeline.evaluate.catalogue import TASKS, description, template_of

    width = max(map(len, TASKS))
    for task in TASKS:
        print(f"{task:{width}}  {template_of(task):5}  {description(task)}")
    tell("after each name the template (data.template) of its training; `lm_eval ls tasks` lists lm-eval's own tasks")


@app.command()
def doctor() -> None:
    """What this machine has and lacks for dualtune, with advice. Exit status 1 if something essential is missing."""
    from pipeline.doctor import examine, show

    findings = examine()
    show(findings)
    raise typer.Exit(int(any(finding.essential and not finding.good for finding in findings)))


@config_app.command("show", epilog="Example: dualtune config show configs/bitune/csqa.yaml method=no_mixing")
def config_show(config: GridFile, overrides: Overrides = None) -> None:
    """Print the resolved configuration, defaults included; of a grid, that of every run."""
    from launch.grid import load_grid
    from pipeline.config import to_yaml

    grid = load_grid(config, overrides or ())
    print("---\n".join(to_yaml(cell.config) for cell in grid.cells), end="")


@config_app.command("signature", epilog="Example: dualtune config signature configs/bitune/csqa.yaml seed=43")
def config_signature(config: GridFile, overrides: Overrides = None) -> None:
    """Print the signature that identifies what is trained; of a grid, one line a run."""
    from launch.grid import load_grid
    from pipeline.config import signature

    cells = load_grid(config, overrides or ()).cells
    for cell in cells:
        print(signature(cell.config) if len(cells) == 1 else f"{signature(cell.config)}  {cell}")


@show_app.command("pattern", epilog="Example: dualtune show pattern slippery --length 12 --window 2 --png mask.png")
def show_pattern(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as causal or slippery.", show_default=False)],
    length: Annotated[int, typer.Option(min=1, max=200, help="Tokens of the prompt.")] = 10,
    answer: Annotated[int, typer.Option(min=1, max=200, help="Tokens of the answer, with the one that opens it.")] = 3,
    segments: Annotated[
        list[int] | None, typer.Option(min=1, help="Where a further segment of the prompt starts.", show_default=False)
    ] = None,
    sinks: Annotated[int | None, typer.Option(help="Of slippery: first tokens seen.", show_default=False)] = None,
    window: Annotated[int | None, typer.Option(help="Of slippery: tokens before it seen.", show_default=False)] = None,
    full_rows: Annotated[int | None, typer.Option(help="Of slippery: full last rows.", show_default=False)] = None,
    scope: Annotated[str | None, typer.Option(help="Of slippery: prompt or input.", show_default=False)] = None,
    png: Annotated[Path | None, typer.Option(help="Also write a picture.", show_default=False)] = None,
) -> None:
    """Draw which tokens each token of prompt (solid) and answer (shaded) sees: a row is a query, a column a key."""
    from pipeline.model.picture import drawn, sample_mask, save_png

    parameters = {"sinks": sinks, "window": window, "full_rows": full_rows, "scope": scope}
    given = {key: value for key, value in parameters.items() if value is not None}
    mask = sample_mask(name, given, length, answer, segments or ())
    print(drawn(mask, length))
    if png is not None:
        save_png(mask, length, " ".join([name, *(f"{key}={value}" for key, value in given.items())]), png)


@app.command(epilog="Example: dualtune export runs/RUN/model gemma-bitune-bf16 --precision bf16 --shard-size 5GB")
def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A trained model, RUN/model.", show_default=False)],
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder to write.", show_default=False)],
    precision: Annotated[str, typer.Option(help="fp32 or bf16: of the written weights.")] = "fp32",
    shard_size: Annotated[str, typer.Option(help="Largest file of weights.")] = "5GB",
) -> None:
    """Write a trained model anew: another precision, files of another size. It is read back and compared."""
    from pipeline.export import export_model

    export_model(model, target, precision, shard_size)
    print(target)


@app.command(epilog="Example: dualtune estimate configs/bitune/csqa.yaml tuning=full --processes 8")
def estimate(
    config: ConfigFile,
    overrides: Overrides = None,
    processes: Processes = 1,
    memory: Annotated[float, typer.Option(min=0.1, help="GiB of one device.")] = 80.0,
    tflops: Annotated[float, typer.Option(min=0.001, help="What one device really does, 10^12 operations/s.")] = 300.0,
) -> None:
    """Parameters, memory per process under each ZeRO stage, arithmetic and time of a run, before it is started."""
    from launch.estimate import show_estimate
    from launch.tables import terminal
    from pipeline.config import load_config

    show_estimate(load_config(config, overrides or ()), processes, memory, tflops, terminal())


@verify_app.command("resume", epilog="Example: dualtune verify resume configs/bitune/csqa.yaml --steps 5 --processes 2")
def verify_resume(
    config: ConfigFile,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(min=1, help="Updates before and after the kill.")] = 10,
    processes: Processes = 1,
) -> None:
    """Train 2N steps straight, and N, killed, and N more: are losses, order of samples and weights the same bits?"""
    from launch.verify import verify_resume
    from pipeline.config import load_config

    differences = verify_resume(load_config(config, overrides or ()), steps, processes, tell)
    for difference in differences[:20]:
        print(difference)
    print(f"not equal: {len(differences)} differences" if differences else "equal, bit by bit")
    raise typer.Exit(int(bool(differences)))


def follow_parent() -> None:
    """Stop in good order when the launcher that started this process is gone: nothing trains on unseen."""
    launcher = os.environ.get("DUALTUNE_PARENT")
    if not launcher:
        return

    def watch() -> None:
        while os.getppid() == int(launcher):
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 (failed), 2 (user's mistake), 130 (interrupted)."""
    silence()
    follow_parent()
    try:
        status = app(arguments, prog_name="dualtune", standalone_mode=False)
    except Exception as error:
        return _explain(error)
    if status == 130:
        tell("interrupted: the same command goes on where it stopped")
    return status if isinstance(status, int) else 0


def _explain(error: Exception) -> int:
    """Print one line (with DUALTUNE_DEBUG=1 the stack trace before it) and return the exit status."""
    from pipeline.stages import describe

    if debugging():
        import traceback

        traceback.print_exception(error)
    usage = getattr(error, "format_message", None)  # the parser's own errors: unknown commands, options, ...
    if usage is not None:
        if usage():  # empty when help was printed because no command was given
            tell(f"error: {usage()} (see `dualtune --help`)")
        return int(getattr(error, "exit_code", 2))
    advice = "" if isinstance(error, UserError | OSError) else " (DUALTUNE_DEBUG=1 shows where)"
    tell(f"error: {describe(error)}{advice}")
    return error.status if isinstance(error, UserError) else 1


if __name__ == "__main__":
    sys.exit(main())
