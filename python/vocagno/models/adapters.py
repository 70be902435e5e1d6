"""Models with PEFT adapters."""

from typing import Any

from vocagno.models.head import UnsupportedModelError


def without_wrapper(model: Any) -> Any:
    """The causal language model inside a `peft.PeftModel`, with its adapters; another model as it
    is. Training it trains what PEFT left trainable.

    Raises: UnsupportedModelError for adapters that are not inside the layers: prompts, and adapters
        or trained copies of the embedding or of the language head.
    """
    settings = getattr(model, "peft_config", None)
    if not isinstance(settings, dict) or not hasattr(model, "get_base_model"):
        return model
    if any(one.is_prompt_learning for one in settings.values()):
        raise UnsupportedModelError(
            "PEFT: learned prompts are not in the layers of the model; use LoRA or the like"
        )
    inner = model.get_base_model()
    for name in ("get_output_embeddings", "get_input_embeddings"):
        module = getattr(inner, name)()
        if hasattr(module, "base_layer") or hasattr(module, "modules_to_save"):
            raise UnsupportedModelError(
                f"PEFT: {type(module).__name__} replaces the embedding or the language head, whose "
                "weights the loss reads; adapt other layers (target_modules, modules_to_save)"
            )
    return inner
