"""Training loops: steps, validation, checkpoints, run directories."""
