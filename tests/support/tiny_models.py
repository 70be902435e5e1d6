"""Tiny models with random weights."""


def tiny_llama(vocab_size, seed=0, **options):
    """A Llama of some thousand weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    config = LlamaConfig(vocab_size=vocab_size, **{**sizes, **options})
    return LlamaForCausalLM(config).eval()


def scaled_models():
    """Tiny models that cap or scale their logits: Gemma 2, Cohere, Granite."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    options = {
        "gemma2": {"final_logit_softcapping": 0.5},
        "cohere": {"logit_scale": 4.0},
        "granite": {"logits_scaling": 0.5},
    }
    for kind, special in options.items():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **sizes, **special)
        yield AutoModelForCausalLM.from_config(config, attn_implementation="eager")
