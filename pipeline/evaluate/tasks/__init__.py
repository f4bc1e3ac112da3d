"""Tasks in the form of lm-eval; `lm_eval --include_path` of this folder finds them too."""
