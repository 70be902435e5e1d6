"""Guidance in torch, scoring, and the training loop on Accelerate."""
