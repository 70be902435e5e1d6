"""The training loop on Accelerate: steps, checkpoints, logs."""
