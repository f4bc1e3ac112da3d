"""The model: an unmodified causal language model whose layers may carry a prompt branch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.errors import StageError, UserError
from pipeline.model.batch import Batch
from pipeline.model.branches import BranchedLayer
from pipeline.model.config import MethodConfig, ModelConfig, TuningConfig
from pipeline.model.head import token_losses, token_scores
from pipeline.model.kernels import Kernel
from pipeline.model.layout import Layout, lay_out
from pipeline.model.sharding import gathered


class DualBranch(nn.Module):
    """A causal language model under a method: prompts are read by branches, answers read the result.

    Build one with `build_model`, load a trained one with `DualBranch.from_pretrained(folder)`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        base: ModelConfig,
        method: MethodConfig,
        tuning: TuningConfig,
        adapters: PeftModel | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.base, self.method, self.tuning = base, method, tuning
        self.facts: dict[str, Any] = {}
        """What was recorded when the model was saved (template hash, signature, ...)."""
        self.kernel: Kernel | None = None
        """Of attention, in training; see `pipeline.model.kernel_choice`."""
        # PEFT's wrapper holds the same modules; registered, it would double every name.
        self.__dict__["adapters"] = adapters

    @classmethod
    def from_pretrained(cls, folder: Path | str, base: str | None = None, precision: str | None = None) -> "DualBranch":
        """Load a folder written by `save_pretrained`; see `pipeline.model.storage.load`."""
        from pipeline.model.storage import load

        return load(Path(folder), base, precision)

    def save_pretrained(self, folder: Path | str, state: dict[str, Tensor] | None = None, **facts: Any) -> None:
        """Write the trained weights; see `pipeline.model.storage.save`."""
        from pipeline.model.storage import save

        save(self, Path(folder), facts, state)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states of the answer rows, [answer rows, width], answers one behind another."""
        layout = self.lay_out(batch)
        return self.run(layout)[layout.answer_rows]

    def lay_out(self, batch: Batch, join: bool = True, cached: int = 0) -> Layout:
        """The rows of the batch under this model's method, on its device; see `pipeline.model.layout.lay_out`."""
        window, longest = getattr(self.model.config, "sliding_window", None), cached + batch.longest
        if window and longest > window:
            raise UserError(f"a sample of {longest} tokens is longer than the model's sliding window of {window}")
        layout = lay_out(batch.to(self.device), self.method, join, cached)
        layout.kernel = self.kernel
        return layout

    def run(self, layout: Layout) -> Tensor:
        """One pass through all layers: [causal rows, width]; with a prompt branch [answer rows, width]."""
        decoder = self.model.base_model
        output = decoder(
            **self._inputs(layout),
            position_ids=layout.position_ids,
            # A mask of four dimensions is passed through as it is: the model makes none of its own.
            attention_mask=torch.zeros(1, 1, 1, 1, device=layout.input_ids.device),
            use_cache=False,
            layout=layout,
        )
        self._check_attended(layout)
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def _check_attended(self, layout: Layout) -> None:
        """A release of transformers that calls attention otherwise would train a plain causal model unseen."""
        layers = self.model.config.num_hidden_layers
        if len(layout.attended) != layers:
            raise StageError(f"only {len(layout.attended)} of {layers} layers called dualtune's attention: "
                             "this release of transformers is not one that is supported")  # fmt: skip

    def _inputs(self, layout: Layout) -> dict[str, Tensor]:
        """Token ids, or embeddings where the prompt branch has its own."""
        own = getattr(self.model.base_model, "prompt", None)
        if own is None:
            return {"input_ids": layout.input_ids}
        causal, prompt = layout.input_ids.split([layout.causal_rows, layout.branch_rows], dim=1)
        embedded: Tensor = self.model.get_input_embeddings()(causal)
        return {"inputs_embeds": torch.cat([embedded, own["embed_tokens"](prompt).to(embedded.device)], dim=1)}

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, width] -> [rows, vocabulary]."""
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        return logits

    def losses(self, batch: Batch, labels: Tensor) -> Tensor:
        """Negative log-likelihood of each label, float32 [answer rows]; differentiable.

        Logits are made in chunks; see `pipeline.model.head`.
        """
        return token_losses(self.model.get_output_embeddings(), self(batch), labels.to(self.device))

    @torch.no_grad()
    def score(self, batch: Batch, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(negative log-likelihood of each label, is the label the most likely token), both [answer rows]."""
        return token_scores(self.model.get_output_embeddings(), self(batch), labels.to(self.device))

    def generate(self, prompts: Sequence[Sequence[int]], max_new_tokens: int, **options: Any) -> list[list[int]]:
        """Continue prompts; see `pipeline.model.generation.generate`."""
        from pipeline.model.generation import generate

        return generate(self, prompts, max_new_tokens, **options)

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that training changes, by name."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def alphas(self) -> list[dict[str, float]]:
        """Mixing ratios of each layer, {"key": alpha, "value": alpha}; empty for methods that don't mix.

        Under ZeRO-3 all ranks must ask together.
        """
        mixings = [layer.mixing for layer in self.modules() if isinstance(layer, BranchedLayer) and layer.mixing]
        with gathered(parameter for mixing in mixings for parameter in mixing.parameters()):
            return [{"key": m.alpha(m.theta_key).item(), "value": m.alpha(m.theta_value).item()} for m in mixings]
