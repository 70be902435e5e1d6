"""The GPU hour: everything that needs a CUDA device, measured in one command (`make gpu`)."""
