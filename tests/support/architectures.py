"""Every causal architecture of transformers, tiny; writes the table of docs/models.md.

python tests/support/architectures.py docs/models.md
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from vocagno.models.head import Head, LanguageHead, UnsupportedModelError, language_head

TRANSFORMERS = "5.23"
"""The release that the table is about."""
ARCHITECTURES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
MISSING_PACKAGES = {"gemma3n": "timm"}
"""What an architecture needs that the tests do not install."""
VOCABULARY = 96

_NAMES = {
    VOCABULARY: "vocab_size decoder_vocab_size vocab_size_per_layer_input",
    90: "unpadded_vocab_size",
    64: "max_position_embeddings n_positions max_seq_len n_ctx max_target_positions context_length "
    "model_max_length max_source_positions ngram_vocab_size_base",
    48: "intermediate_size n_inner ffn_dim ffn_hidden_size dff d_inner decoder_ffn_dim dim_ff "
    "encoder_ffn_dim feed_forward_size moe_intermediate_size expert_ffn_hidden_size "
    "intermediate_size_mlp dense_intermediate_size shared_expert_intermediate_size "
    "shared_experts_intermediate_size shared_intermediate_size "
    "moe_shared_expert_intermediate_size output_embedding_size",
    32: "hidden_size d_model n_embd emb_dim embedding_dim hidden_size_global embedding_size "
    "input_embedding_size ple_embed_dim lru_width word_embed_proj_dim vision_output_dim",
    16: "qk_head_dim rel_extent",
    8: "head_dim d_head dim_head attention_head_size kv_channels attention_head_dim d_rel "
    "linear_head_dim linear_key_head_dim linear_value_head_dim swa_head_dim global_head_dim "
    "v_head_dim qk_nope_head_dim qk_rope_head_dim index_head_dim rotary_dim q_lora_rank "
    "kv_lora_rank o_lora_rank laurel_rank adapter_rank hc_lowrank hidden_size_per_layer_input "
    "time_step_rank mamba_dt_rank router_hidden_size gated_norm_rank mamba_d_state "
    "ssm_state_size state_size sliding_window attention_window_size window_size "
    "sliding_window_size local_attention attention_chunk_size mamba_chunk_size chunk_size "
    "num_buckets index_block_size encoder_hash_byte_group_vocab pronunciation_vocab_size "
    "pronunciation_embed_dim shape_vocab_size shape_embed_dim prompt_length "
    "make_ngram_vocab_size_divisible_by index_n_heads",
    4: "num_attention_heads n_head n_heads num_heads attention_heads decoder_attention_heads "
    "encoder_attention_heads num_decoder_attention_heads num_encoder_attention_heads "
    "linear_num_heads linear_num_value_heads swa_num_attention_heads mamba_n_heads "
    "mamba_num_heads num_experts num_local_experts n_routed_experts moe_num_experts "
    "zero_expert_num",
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers depth "
    "num_decoder_layers num_encoder_layers num_blocks num_key_value_heads num_kv_heads "
    "kv_n_heads linear_num_key_heads swa_num_key_value_heads n_mamba_heads num_experts_per_tok "
    "num_experts_per_token moe_topk moe_k moe_top_k index_topk index_topk_blocks",
    1: "n_group topk_group num_expert_group n_shared_experts num_shared_experts "
    "moe_num_shared_experts split_ngram_parts",
}
SIZES = {name: size for size, names in _NAMES.items() for name in names.split()}
"""The largest value of an option that says how large a model is."""
_NEEDED = (
    *("head_dim", "num_key_value_heads", "n_routed_experts", "num_local_experts"),
    *("n_shared_experts", "moe_intermediate_size", "num_experts_per_tok"),
)
"""Sizes that are set although a configuration leaves them open."""
VALUES = {
    **dict.fromkeys(("pad_token_id", "decoder_start_token_id"), 0),
    **dict.fromkeys(("bos_token_id", "cls_token_id"), 1),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
    **dict.fromkeys(("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap"), 0.5),
    **dict.fromkeys(("logit_scale", "logits_scaling", "lm_head_multiplier"), 0.5),
    "logits_mup_width_multiplier": 4.0,
    "initializer_range": 0.1,
}
"""Ids that a small vocabulary has, and factors that a head must not overlook."""

_SLIDING_AND_FULL = ["sliding_attention", "full_attention"]
_LINEAR_AND_FULL = ["linear_attention", "full_attention"]
_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
_QWEN4 = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
    "ple_layer_ids": [1],
    "eos_token_id": 2,
}
_DOTS3 = {
    "num_key_value_heads": 4,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_q_lora_rank": 8,
    "swa_kv_lora_rank": 8,
    "swa_head_dim": 16,
    "swa_qk_nope_head_dim": 8,
    "swa_v_head_dim": 8,
}
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {
        "layer_types": _SLIDING_AND_FULL,
        "rope_parameters": dict.fromkeys(_SLIDING_AND_FULL, _ROPE),
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots3_note": {
        "text_config": _DOTS3,
        "audio_config": {"adapter_input_size": 32, "adapter_out_dim": 32},
        "vision_config": {
            "pyramid_num_routed": [-1, 4],
            "adapter_in_dim": 32,
            "adapter_out_dim": 32,
        },
    },
    "dots3_note_text": _DOTS3,
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": _SLIDING_AND_FULL * 2,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": _LINEAR_AND_FULL},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8},
    "nemotron_h": {"n_groups": 2},
    "qwen4_exp_text": _QWEN4,
    "qwen4_exp": {"text_config": _QWEN4},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"is_decoder": True, "attn_layers": ["local", "lsh"], "axial_pos_embds": False},
    "xlstm": {"hidden_size": 64, "embedding_dim": 64},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 6,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "zamba2": {
        "num_hidden_layers": 4,
        "num_mem_blocks": 1,
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid", "hybrid"],
    },
}
"""Options that do not follow from the defaults of a configuration."""
ASSISTANTS = {"gemma4_assistant": "gemma4_text", "gemma4_unified_assistant": "gemma4_unified_text"}
"""Architectures whose defaults contradict each other, and what they are made of."""


def tiny_config(architecture: str, **options: Any) -> Any:
    """A configuration of some ten thousand weights, with every kind of layer the defaults have."""
    kind = CONFIG_MAPPING[architecture]
    if text := ASSISTANTS.get(architecture):
        per_layer = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
        return kind(text_config=tiny_config(text, **per_layer), backbone_hidden_size=32)
    return kind(**_merged(_shrunk(kind()), {**SPECIAL.get(architecture, {}), **options}))


def _merged(options: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The overrides win; those of parts are merged."""
    merged = dict(options)
    for name, value in overrides.items():
        inside = name.endswith("_config") and isinstance(merged.get(name), dict)
        merged[name] = {**merged[name], **value} if inside else value
    return merged


def _shrunk(config: Any) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in vars(config).items():
        if hasattr(value, "model_type"):
            options[name] = _shrunk(value)
            if value.model_type:
                options[name]["model_type"] = value.model_type
        elif name in VALUES and isinstance(value, int | float):
            options[name] = VALUES[name]
        elif name.endswith(("dropout", "pdrop", "dropout_prob", "layerdrop")) and value:
            options[name] = type(value)(0)
        elif name in SIZES and (type(value) is int or (value is None and name in _NEEDED)):
            options[name] = SIZES[name] if value is None else min(value, SIZES[name])
    if "kv_lora_rank" in options:  # heads share one latent, so there are as many of either
        options["num_key_value_heads"] = SIZES["num_attention_heads"]
    if "layer_types" in vars(config) and config.layer_types and "num_hidden_layers" in options:
        kinds = list(dict.fromkeys(config.layer_types))
        kinds += kinds[-1:] * (2 - len(kinds))
        options |= {"layer_types": kinds, "num_hidden_layers": len(kinds)}
        if vars(config).get("mlp_layer_types"):
            of_mlp = list(dict.fromkeys(config.mlp_layer_types))
            options["mlp_layer_types"] = (of_mlp + of_mlp[-1:] * len(kinds))[: len(kinds)]
    return options


def build(architecture: str, **options: Any) -> Any:
    """A model in float32 with random weights."""
    torch.manual_seed(0)
    config = tiny_config(architecture, **options)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


class Outcome(NamedTuple):
    """What becomes of an architecture."""

    how: str
    """product, own head, refused, or not built."""
    option: str | None = None
    """What has to be set in its configuration."""
    reason: str | None = None
    model: Any = None
    head: Head | None = None


CAUSAL_OPTIONS: tuple[dict[str, Any], ...] = (
    {"is_decoder": True},
    {"causal": True},
    {"attn_type": "uni"},
)
"""What makes an encoder read from left to right, by the names of different architectures."""


def outcome_of(architecture: str) -> Outcome:
    """Builds the model and asks for its head; an encoder a second time as a decoder."""
    try:
        model = build(architecture)
    except (ImportError, AttributeError, ValueError) as error:
        package = MISSING_PACKAGES.get(architecture)
        words = f"it needs the package {package}" if package else "transformers cannot build it"
        return Outcome("not built", reason=f"{words} ({type(error).__name__})")
    try:
        return _with_head(model)
    except UnsupportedModelError as error:
        reason = str(error).removeprefix(f"{type(model).__name__}: ")
    for option in CAUSAL_OPTIONS:
        ((name, value),) = option.items()
        if f"set {name}: {str(value).replace('True', 'true')}" in reason:
            return _with_head(build(architecture, **option), f"{name}: {str(value).lower()}")
    return Outcome("refused", reason=reason.split("\n")[0])


def _with_head(model: Any, option: str | None = None) -> Outcome:
    head = language_head(model)
    how = "product" if isinstance(head, LanguageHead) else "own head"
    return Outcome(how, option, None, model, head)


def row(architecture: str, outcome: Outcome) -> str:
    """Of the table in docs/models.md."""
    kind = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[architecture]
    if outcome.how in ("refused", "not built"):
        return f"| `{architecture}` | `{kind}` | no | {outcome.how}: {outcome.reason} |"
    serves = "yes" if outcome.option is None else f"with `{outcome.option}`"
    return f"| `{architecture}` | `{kind}` | {serves} | {outcome.how} |"


def summary(rows: list[str]) -> str:
    """How many rows there are of each kind."""
    kinds = [line.split("|")[4].split(":")[0].strip() for line in rows]
    counts = {kind: kinds.count(kind) for kind in ("product", "own head", "refused", "not built")}
    assert sum(counts.values()) == len(rows)
    parts = ", ".join(f"{kind} {count}" for kind, count in counts.items())
    return f"transformers {TRANSFORMERS}, {len(rows)} architectures: {parts}."


def main() -> None:
    page = Path(sys.argv[1])
    if not transformers.__version__.startswith(f"{TRANSFORMERS}."):
        raise SystemExit(f"transformers {transformers.__version__}: expected {TRANSFORMERS}")
    rows = [row(name, outcome_of(name)) for name in ARCHITECTURES]
    begin, end = "<!-- architectures -->\n", "<!-- end of architectures -->"
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    head = ["| architecture | class | teacher and student | how |", "|---|---|---|---|"]
    lines = [summary(rows), "", *head, *rows]
    page.write_text(before + begin + "".join(f"{line}\n" for line in lines) + end + after)


if __name__ == "__main__":
    main()
