"""From one YAML file to many runs: the grid, its plan, and its execution on this machine."""
