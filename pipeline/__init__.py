"""dualtune: fine-tune decoder-only language models with branches over the prompt."""

__version__ = "0.1.0"
