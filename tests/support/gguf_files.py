"""GGUF files of tiny models."""

import json


def write_gguf(
    path, vocab_size, *, tokenizer=None, pre=None, omitted="", added=(), value=1, scaling=None
):
    """A GGUF file of a `tiny_llama`, less one tensor, with others of 32 equal numbers. Skips a test
    where the package gguf is not installed.

    Args:
        tokenizer: a byte-level BPE of `tokenizers`, to be written with it.
        pre: the name of its pre-tokenizer.
        scaling: the name of a `gguf.RopeScalingType`.
    """
    import pytest
    import torch

    from tiny_models import tiny_llama

    gguf = pytest.importorskip("gguf", reason="GGUF files are read by the package gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(48)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(vocab_size)
    if scaling is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType[scaling])
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    if tokenizer is not None:
        definition = json.loads(tokenizer.to_str())
        special = {token["id"] for token in definition["added_tokens"] if token["special"]}
        ids = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([token for token, _ in ids])
        writer.add_token_types([3 if index in special else 1 for _, index in ids])
        writer.add_token_merges([" ".join(pair) for pair in definition["model"]["merges"]])
        for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_unk_token_id):
            add(min(special))  # old releases of transformers read all three
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    tensors = {
        names.get_name(name, (".weight",)): weight.numpy()
        for name, weight in tiny_llama(vocab_size).state_dict().items()
    }
    tensors |= {name: torch.full((32,), float(value)).numpy() for name in added}
    for name, tensor in tensors.items():
        if name != omitted:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
