"""Tiny models with random weights."""

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def tiny_llama(vocab_size, seed=0, **options):
    """A Llama of some thousand weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=vocab_size, **{**SIZES, **options})
    return LlamaForCausalLM(config).eval()


def save_llama(folder, tokenizer, seed=0, size=None, **options):
    """Saves a `tiny_llama`, with an id for each of the tokenizer's unless told, and the tokenizer.
    Returns: the folder."""
    tiny_llama(size or tokenizer.get_vocab_size(), seed, **options).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def scaled_models():
    """Tiny models that cap or scale their logits: Gemma 2, Cohere, Granite."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    special_ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    sizes = {"vocab_size": 50, "head_dim": 16, **SIZES, **special_ids}
    options = {
        "gemma2": {"final_logit_softcapping": 0.5},
        "cohere": {"logit_scale": 4.0},
        "granite": {"logits_scaling": 0.5},
    }
    for kind, special in options.items():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **sizes, **special)
        yield AutoModelForCausalLM.from_config(config, attn_implementation="eager")
