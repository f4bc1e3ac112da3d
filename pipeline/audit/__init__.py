"""The audit of prepared rows, before any GPU is used."""
