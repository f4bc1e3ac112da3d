"""The run folder: every path of a run, and the interface between the stages.

RUNS/NAME-SIGNATURE/
  config.yaml            the resolved configuration
  versions.json          code and library versions
  audit.html             the audit of the data, if it was asked for
  prepare.json           manifest of the prepared data (the rows lie in the shared cache)
  train/metrics.jsonl    one line per logged step
  train/tensorboard/
  train/wandb/
  train/trackers.json    the run's id for trackers
  train/checkpoints/step-N/
  train/result.json      written last: training is complete when this validates
  model/                 the trained model (Hugging Face or PEFT form)
  inference.json         how long reading a prompt and answering took, where it was measured
  failed.json            why the last attempt failed; absent when it did not
  log.txt                output of the run in a grid on this machine
  evaluate/TASK.json     scores and what they were measured with; complete when it validates
  evaluate/TASK.jsonl    one line per document
  evaluate/TASK.answers/ the model's answers so far, while the task is being scored
"""

from dataclasses import dataclass
from pathlib import Path

from pipeline.config import RunConfig, signature, to_yaml
from pipeline.files import write_text


@dataclass(frozen=True)
class RunFolder:
    """All paths of one run."""

    root: Path

    @classmethod
    def of(cls, config: RunConfig) -> "RunFolder":
        """The folder that belongs to a configuration. Nothing is created."""
        return cls(config.paths.runs / f"{config.name}-{signature(config)}")

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def versions(self) -> Path:
        return self.root / "versions.json"

    @property
    def failure(self) -> Path:
        return self.root / "failed.json"

    @property
    def log(self) -> Path:
        return self.root / "log.txt"

    @property
    def lock(self) -> Path:
        """Held by the process that works on the run."""
        return self.root / ".lock"

    @property
    def prepare_manifest(self) -> Path:
        return self.root / "prepare.json"

    @property
    def audit(self) -> Path:
        return self.root / "audit.html"

    @property
    def metrics(self) -> Path:
        return self.root / "train" / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.root / "train" / "tensorboard"

    @property
    def trackers(self) -> Path:
        return self.root / "train" / "trackers.json"

    @property
    def checkpoints(self) -> Path:
        return self.root / "train" / "checkpoints"

    @property
    def train_result(self) -> Path:
        return self.root / "train" / "result.json"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def inference(self) -> Path:
        return self.root / "inference.json"

    def evaluation(self, task: str) -> Path:
        return self.root / "evaluate" / f"{task}.json"

    def samples(self, task: str) -> Path:
        return self.root / "evaluate" / f"{task}.jsonl"

    def answers(self, task: str) -> Path:
        return self.root / "evaluate" / f"{task}.answers"

    def create(self, config: RunConfig) -> None:
        """Make the folder and record the configuration in it."""
        self.root.mkdir(parents=True, exist_ok=True)
        write_text(self.config, to_yaml(config))
