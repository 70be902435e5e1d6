"""The decoder layers of a transformers model, which are compiled and sharded one by one."""

from typing import Any

from torch import nn

from vocagno.config import ConfigError


def decoder_layers(model: Any, option: str) -> list[nn.Module]:
    """The layers that a model says are not to be split.

    Raises: ConfigError naming the option that needs them, for a model that names none.
    """
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        raise ConfigError(f"{option}: {type(model).__name__} names no layers; use false")
    return layers


def compile_layers(model: Any) -> None:
    """Compiles each decoder layer; layers that are alike are compiled once."""
    for layer in decoder_layers(model, "train.compile"):
        layer.compile()
