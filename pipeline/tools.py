"""Commands around the stages: asking models, looking at configurations and methods, checks, exports."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cache_tools import data_app
from pipeline.errors import UserError
from pipeline.options import ConfigFile, GridFile, Overrides, Processes, tell

tools = typer.Typer()
config_app = typer.Typer(help="Look at configurations without running anything.", no_args_is_help=True)
tools.add_typer(config_app, name="config")
show_app = typer.Typer(help="Draw what methods are made of.", no_args_is_help=True)
tools.add_typer(show_app, name="show")
tools.add_typer(data_app, name="data")
verify_app = typer.Typer(help="Prove on this machine what dualtune promises.", no_args_is_help=True)
tools.add_typer(verify_app, name="verify")


@tools.command(epilog="Example: dualtune compare runs/RUN1 runs/RUN2 --documents 20")
def compare(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="Another run folder.", show_default=False)],
    documents: Annotated[int, typer.Option(min=0, help="Documents to show of each task.")] = 5,
) -> None:
    """In what two runs differ: configuration, data, training, and the documents that only one of them got right."""
    from launch.tables import terminal
    from pipeline.report.two_runs import compare_runs, render

    terminal().print(render(compare_runs(first, second), documents), highlight=False)


@tools.command("time", epilog="Example: dualtune time runs/* --prompt-tokens 512 --new-tokens 128")
def time_inference(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Trained run folders.", show_default=False)],
    prompt_tokens: Annotated[int, typer.Option(min=2, help="Length of the prompt.")] = 2000,
    new_tokens: Annotated[int, typer.Option(min=1, help="Length of the answer.")] = 2000,
    rounds: Annotated[int, typer.Option(min=1, help="The median of so many is kept.")] = 3,
) -> None:
    """Measure how long trained models take to read a prompt and to answer; reports then show it."""
    from pipeline.inference import measure_inference
    from pipeline.run_folder import RunFolder

    for run in runs:
        found = measure_inference(RunFolder(run), prompt_tokens, new_tokens, rounds)
        print(f"{run}: prefill {found['prefill_seconds']:.3f} s, answer {found['generation_seconds']:.2f} s")


@tools.command(
    epilog='Example: dualtune generate models/SmolLM2-135M-Instruct --prompt "What is the capital of France?"'
)
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


@tools.command()
def tasks() -> None:
    """The evaluation tasks of ours. Those of lm-eval can be named too: `lm_eval ls tasks` lists them."""
    from pipeline.evaluate.catalogue import TASKS, description, template_of

    width = max(map(len, TASKS))
    for task in TASKS:
        print(f"{task:{width}}  {template_of(task):5}  {description(task)}")
    tell("after each name the template (data.template) of its training; `lm_eval ls tasks` lists lm-eval's own tasks")


@tools.command()
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


@tools.command(epilog="Example: dualtune export runs/RUN/model gemma-bitune-bf16 --precision bf16 --shard-size 5GB")
def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A trained model, RUN/model.", show_default=False)],
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder to write.", show_default=False)],
    precision: Annotated[str, typer.Option(help="fp32 or bf16: of the written weights.")] = "fp32",
    shard_size: Annotated[str, typer.Option(help="Largest file of weights.")] = "5GB",
    merge: Annotated[
        bool, typer.Option("--merge", help="Adapters become part of the weights of full branches.")
    ] = False,
) -> None:
    """Write a trained model anew: another precision, files of another size, adapters merged. It is read back and
    compared."""
    from pipeline.export import export_model

    export_model(model, target, precision, shard_size, merge)
    print(target)


@tools.command(epilog="Example: dualtune estimate configs/bitune/csqa.yaml tuning=full --processes 8")
def estimate(
    config: ConfigFile,
    overrides: Overrides = None,
    processes: Processes = 1,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="For what of the two below is not given: its memory, 40 % of its peak. H100, L40S, ...",
            show_default=False,
        ),
    ] = None,
    memory: Annotated[
        float | None, typer.Option(min=0.1, help="GiB of one device, 80 if not told.", show_default=False)
    ] = None,
    tflops: Annotated[
        float | None,
        typer.Option(min=0.001, help="10^12 operations/s it really does, 300 if not told.", show_default=False),
    ] = None,
) -> None:
    """Parameters, memory per process under each ZeRO stage, arithmetic and time of a run, before it is started; and on
    how many devices it fits."""
    from launch.estimate import device, show_estimate
    from launch.tables import terminal
    from pipeline.config import load_config

    gib, rate = device(gpu, memory, tflops)
    show_estimate(load_config(config, overrides or ()), processes, gib, rate, terminal())


@verify_app.command("resume", epilog="Example: dualtune verify resume configs/bitune/csqa.yaml --kills 3 --processes 2")
def verify_resume(
    config: ConfigFile,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(min=4, help="Updates between kills, at most.")] = 10,
    kills: Annotated[int, typer.Option(min=1, help="How often the run is killed.")] = 1,
    processes: Processes = 1,
) -> None:
    """Train straight, and again, killed K times with SIGKILL at random: are losses, order and weights the same bits?

    Each run takes N x (K + 1) updates. Every other kill strikes inside a save.
    """
    from launch.verify import verify_resume
    from pipeline.config import load_config

    differences = verify_resume(load_config(config, overrides or ()), steps, kills, processes, tell)
    for difference in differences[:20]:
        print(difference)
    print(f"not equal: {len(differences)} differences" if differences else "equal, bit by bit")
    raise typer.Exit(int(bool(differences)))
