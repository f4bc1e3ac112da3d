"""Run by test_ranks as one of several processes: cases that need them, one after another; rank 0 writes what they
gave to OUTPUT as JSON.

usage: ranks_script.py FOLDER CASE...   (RANK, WORLD_SIZE, ... in the environment)
"""

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.quiet import silence

silence()

import torch  # noqa: E402
from test_stage_train import config_of, templated  # noqa: E402
from train_runs import (  # noqa: E402
    LONG_RUN,
    ROWS,
    SMALLEST_SWAP,
    make_model,
    rank_config,
    same,
    samples,
    validated_losses,
    weights,
)

from pipeline.config import RunConfig  # noqa: E402
from pipeline.errors import StageError  # noqa: E402
from pipeline.model import DualBranch  # noqa: E402
from pipeline.model.sharding import gathered  # noqa: E402
from pipeline.prepare import prepare  # noqa: E402
from pipeline.run_folder import RunFolder  # noqa: E402
from pipeline.train import train  # noqa: E402
from pipeline.train.checkpoint import Checkpoints  # noqa: E402
from pipeline.train.engine import forget_accelerator  # noqa: E402
from pipeline.train.export import export  # noqa: E402
from pipeline.train.loop import TrainingLoop  # noqa: E402
from pipeline.train.memory import held_bytes  # noqa: E402
from pipeline.train.nvme import nvme_files  # noqa: E402
from pipeline.train.ranks import Ranks, join, leave  # noqa: E402
from pipeline.train.sharded import make_sharded_accelerator  # noqa: E402
from pipeline.train.share import Share  # noqa: E402
from pipeline.train.signals import StopSignals  # noqa: E402


class Case:
    """The processes, and a folder that they share."""

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        self.folder, self.ranks = folder, ranks

    def loop(self, config: RunConfig, turns: int = 0, nvme: dict[str, Any] | None = None) -> TrainingLoop:
        forget_accelerator()  # of the case before
        is_sharded = config.training.zero.stage > 0
        accelerator = make_sharded_accelerator(config.training, self.ranks, nvme) if is_sharded else None
        folder = RunFolder.of(config)
        identity = {"processes": self.ranks.count}
        checkpoints = Checkpoints(folder.checkpoints, identity, config.training.keep_checkpoints, self.ranks)
        data = samples(ROWS, turns=turns)
        return TrainingLoop(config, folder, make_model(config), data, checkpoints, self.ranks, accelerator)

    def losses(self, stage: int, kind: str, method: str, steps: int, turns: int = 0, **training: Any) -> dict[str, Any]:
        """Loss and learning rate of each update, and what is held."""
        loop = self.loop(rank_config(self.folder, stage, kind, method, **training), turns)
        updates = [loop._update() for _ in range(steps)]
        return {
            "losses": [update["loss"] for update in updates],
            "rates": [update["learning_rate"] for update in updates],
            "held": self.ranks.gather(held_bytes(loop.engine)),
            "parameters": sorted(name for name in loop.engine.parameters),
        }

    def moved(self, stage: int, kind: str, rank: int = 4) -> dict[str, Any]:
        """Trained tensors that two updates leave as they are, and other tensors that they change."""
        loop = self.loop(rank_config(self.folder, stage, kind, "bitune", rank=rank, warmup_ratio=0.0))
        before = copies(loop.model)
        for _ in range(2):
            loop._update()
        after, trained = copies(loop.model), loop.engine.parameters
        still = sorted(name for name in trained if torch.equal(after[name], before[name]))
        other = sorted(name for name in after if name not in trained and not torch.equal(after[name], before[name]))
        return {"still": still, "other": other, "trained": len(trained)}

    def resumed(self, stage: int, kind: str, turns: int = 0) -> dict[str, Any]:
        """Six updates straight, against three, a new start from the checkpoint, and three."""
        options: dict[str, Any] = {"dropout": 0.1}
        straight = self.loop(rank_config(self.folder / "straight", stage, kind, "bitune", **options), turns)
        for _ in range(6):
            straight._update()
        expected = whole(straight)
        config = rank_config(self.folder / f"resumed{stage}-{turns}", stage, kind, "bitune", **options)
        first = self.loop(config, turns)
        for _ in range(3):
            first._update()
        first.checkpoints.save(3, first.state.write)
        second = self.loop(config, turns)
        second.resume()
        for _ in range(3):
            second._update()
        equal = same(whole(second), expected), second.position.loss == straight.position.loss
        return {"equal": self.ranks.gather(equal), "step": second.position.step}

    def offloaded(self, first: list[str], then: list[str]) -> dict[str, Any]:
        """Six updates with states and weights in their places, and the last three again from a checkpoint, with them in
        others; what is held, and the files that were seen on the way."""
        swap_small_tensors()
        folder = self.folder / "-".join(first + then)
        folder.mkdir(exist_ok=True)
        losses, found, held, sizes = [], [], [], []
        for start, places in ((0, first), (3, then)):
            config = rank_config(folder / "runs", 3, "full", "bitune", places=(places[0], places[1]))
            with nvme_files(config, RunFolder.of(config), self.ranks) as nvme:
                loop = self.loop(config, nvme=nvme)
                loop.resume()
                for step in range(start, 6):
                    losses.append(loop._update()["loss"])
                    if step == 2:
                        loop.checkpoints.save(3, loop.state.write)
                found.append(fingerprint(loop))
                held.append(self.ranks.gather(held_bytes(loop.engine)))
                sizes.append(sum(file.stat().st_size for file in folder.glob("*/rank-*/**/*.swp")))
                self.ranks.gather(None)  # the other looks still
            self.ranks.gather(None)
        left = sorted(path.name for path in folder.iterdir())
        return {"losses": losses, "weights": found, "sizes": sizes, "left": left, "held": held}

    def validated(self, stage: int) -> dict[str, Any]:
        """The loss on 9 other rows between updates, in chunks of 5 and 4, and what comes after it."""
        loop = self.loop(rank_config(self.folder, stage, "lora", "bitune"))
        found = validated_losses(loop)
        return {"losses": found, "alike": len({*self.ranks.gather(tuple(found))}) == 1}

    def exported(self, stage: int, kind: str) -> dict[str, Any]:
        """Train a little, export, load the folder again in this process, and compare a loss."""
        loop = self.loop(rank_config(self.folder, stage, kind, "bitune"))
        for _ in range(2):
            loop._update()
        share = Share.of(samples(ROWS), loop.packing, 0, 1)
        own = loop.engine._backward(share.micro_batches[0], share)[1]
        folder = self.folder / f"exported-{stage}-{kind}"
        export(loop.model, folder, {}, lambda _: None, self.ranks)
        return {"folder": str(folder), "losses": own.tolist()}

    def templated(self) -> dict[str, Any]:
        """Rows in a template of the user's own: each rank prepares them for itself, then they train together."""
        forget_accelerator()
        config = self.ranks.first(lambda: templated(self.folder / "templated"))
        own = config.paths.model_copy(update=dict.fromkeys(("runs", "cache"), self.folder / f"own{self.ranks.index}"))
        alone = config.model_copy(update={"paths": own})
        data = prepare(alone, RunFolder.of(alone))
        rows = [[row.input_ids, row.prompt_length] for row in data.rows()]
        result = train(config, RunFolder.of(config))
        return {"prepared": self.ranks.gather([data.key, rows]), "result": result}

    def trained(self, **zero: str) -> str:
        """A whole run, never stopped; its folder."""
        forget_accelerator()
        swap_small_tensors()
        options = LONG_RUN | {"zero": LONG_RUN["zero"] | zero}
        config = config_of(self.folder / "-".join(["straight", *zero.values()][:2]), "full", **options)
        train(config, RunFolder.of(config))
        return str(RunFolder.of(config).root)

    def spoilt(self, stage: int) -> dict[str, Any]:
        """A loss that is not a number, of one sample on one rank."""
        loop = self.loop(rank_config(self.folder, stage, "full", "bitune"))
        honest = DualBranch.losses

        def losses(model: DualBranch, batch: Any, labels: torch.Tensor) -> torch.Tensor:
            found = honest(model, batch, labels)
            return found * torch.nan if self.ranks.index == 1 else found

        DualBranch.losses = losses  # type: ignore[method-assign]
        try:
            loop._update()
        except StageError as error:
            return {"messages": self.ranks.gather(str(error))}
        finally:
            DualBranch.losses = honest  # type: ignore[method-assign]
        return {"messages": []}

    def broken_off(self) -> dict[str, Any]:
        """A signal to rank 1 alone, which waits in a collective while rank 0 prepares data, say."""
        with StopSignals(60, ranks=self.ranks) as signals:

            def work() -> None:
                with signals.breaking("while data were prepared"):
                    time.sleep(40)

            if self.ranks.index == 1:
                threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGTERM]).start()
            started = time.monotonic()
            try:
                self.ranks.first(work)
            except StageError as error:
                found = (str(error), error.status)
            seconds = time.monotonic() - started
        return {"found": self.ranks.gather(found), "seconds": max(self.ranks.gather(seconds))}

    def unwritable(self) -> dict[str, Any]:
        """A checkpoint that one rank can't write."""
        loop = self.loop(rank_config(self.folder / "unwritable", 0, "lora", "bitune"))

        def write(folder: Path) -> None:
            loop.state.write(folder)
            if self.ranks.index == 1:
                raise OSError(28, "No space left on device", "somewhere")

        try:
            loop.checkpoints.save(1, write)
        except StageError as error:
            names = sorted(path.name for path in loop.checkpoints.folder.iterdir())
            return {"messages": self.ranks.gather(str(error)), "left": names}
        return {"messages": []}


def copies(model: DualBranch) -> dict[str, torch.Tensor]:
    """All parameters, whole."""
    parameters = dict(model.named_parameters())
    with gathered(parameters.values()):
        return {name: tensor.detach().clone() for name, tensor in parameters.items()}


def swap_small_tensors() -> None:
    from deepspeed.runtime.swap_tensor import optimizer_utils, partitioned_param_swapper

    optimizer_utils.MIN_AIO_BYTES = partitioned_param_swapper.MIN_AIO_BYTES = SMALLEST_SWAP


def fingerprint(loop: TrainingLoop) -> str:
    """Of all trained weights, gathered one at a time, as they must be where they are on NVMe."""
    found = hashlib.sha256()
    for parameter in loop.engine.parameters.values():
        with gathered([parameter]):
            found.update(parameter.detach().cpu().numpy().tobytes())
    return found.hexdigest()


def whole(loop: TrainingLoop) -> dict[str, torch.Tensor]:
    with gathered(loop.engine.parameters.values()):
        return weights(loop)


def main(folder: Path, names: list[str]) -> None:
    ranks = join(use_deepspeed=True)
    case = Case(folder, ranks)
    found = {}
    for name in names:
        call: Callable[..., Any] = getattr(case, name.partition("(")[0])
        found[name] = call(**json.loads(name.partition("(")[2].removesuffix(")") or "{}"))
    if ranks.is_main:
        (folder / "found.json").write_text(json.dumps(found))
    leave()
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2:])
