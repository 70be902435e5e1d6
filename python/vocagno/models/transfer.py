"""Gives a causal language model another tokenizer: rows of its embedding and of its head for a new
vocabulary, made from the rows of the old one.

V: ids of the new vocabulary, W: of the old one, P: old tokens of all spellings, one after the
other, H: hidden size.
"""

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vocagno.errors import ConfigError
from vocagno.models.head import LanguageHead, base_of, language_head
from vocagno.tokens.spelling import Spellings, spell
from vocagno.tokens.token_spans import TokenSpans

ROLES = ("eos_token", "bos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
"""The roles of special tokens, by transformers' names, the most important one first."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The number of new rows by where they came from. The first four add up to the vocabulary."""

    copied: int
    """Rows of one old token, which has the same text."""
    composed: int
    """Means of the rows of several old tokens, which spell the new one."""
    special: int
    """Rows of the old special token of the same role (end of text, ...) or of the same name."""
    mean: int
    """Means of all old rows, for tokens without text or counterpart. The two counts below are part
    of this one."""
    unspelled: int
    """Tokens whose text the old vocabulary cannot spell."""
    never_written: int
    """Tokens whose text the new tokenizer writes with another token, and which the old vocabulary
    does not have."""


def transfer_(
    model: Any, old: TokenSpans, new: TokenSpans, special_ids: Mapping[int, int]
) -> RowCounts:
    """Changes the vocabulary of a model.

    A token that both vocabularies have keeps its rows. The rows of another one are the means of the
    rows of the old tokens that spell it, weighted by their bytes. Tied weights stay tied; a bias of
    the head is composed like its rows.

    Args:
        model: a causal language model of transformers, of any float type; rows are computed in
            float32.
        old, new: the model's tokenizer and the new one.
        special_ids: the old id of new special tokens (`special_counterparts`).
    Raises: UnsupportedModelError for a model whose logits are not a product with its embedding or
        head; ConfigError for a tokenizer with more ids than the model has rows.
    """
    head = language_head(model)
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    if not isinstance(head, LanguageHead) or output is None:
        raise ConfigError(
            f"{type(model).__name__}: its head is more than a matrix with a row for each token, so "
            "no rows can be made for new ones"
        )
    # Either may be padded. More ids than rows: another model's tokenizer, whose ids would index
    # rows of other tokens.
    num_rows = min(len(embedding.weight), len(output.weight))
    if old.vocabulary_size > num_rows:
        raise ConfigError(
            f"{old.name} has {old.vocabulary_size:,} ids and the model {num_rows:,} rows: it is "
            "not the tokenizer of this model; name the folder that holds both"
        )
    # Compared by identity: tied weights are one parameter under two names.
    rows_of_ids = {id(embedding.weight), id(output.weight), id(getattr(output, "bias", None))}
    other_shapes = {
        name: tensor.shape
        for name, tensor in chain(model.named_parameters(), model.named_buffers())
        if id(tensor) not in rows_of_ids
    }
    # A matrix may also be as wide as the vocabulary is large.
    _check_tables(model, set(other_shapes) & _names_with_vocabulary(model))
    if hasattr(base_of(model), "layers_are_rescaled"):
        raise ConfigError(
            f"{type(model).__name__}: its layers are divided while it is evaluated "
            "(`rescale_every`), so that its weights cannot be saved as they are; set "
            "`rescale_every` to 0 in the config.json of the model"
        )
    spellings = spell(new, old)
    is_tied = output.weight is embedding.weight
    old_bias_W = None if getattr(output, "bias", None) is None else output.bias.detach().clone()
    # Rows beyond the tokenizer's ids pad the matrix and belong to no token.
    used = slice(old.vocabulary_size)
    # All rows are made before the model is changed: resizing drops the old ones.
    embedding_VH = composed_rows(embedding.weight.detach()[used], spellings, special_ids)
    output_VH = (
        None if is_tied else composed_rows(output.weight.detach()[used], spellings, special_ids)
    )
    # `mean_resizing` would draw the added rows from the statistics of the old ones, which takes
    # time and random numbers, and all of them are replaced below.
    model.resize_token_embeddings(new.vocabulary_size, mean_resizing=False)
    _check_tables(model, _names_of_other_shape(model, other_shapes))
    for config in (model.config, model.config.get_text_config()):
        if hasattr(config, "unpadded_vocab_size"):  # to which such models cut their logits
            config.unpadded_vocab_size = new.vocabulary_size
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    with torch.no_grad():
        embedding.weight.copy_(embedding_VH)
        if output_VH is not None:
            output.weight.copy_(output_VH)
        if old_bias_W is not None:
            output.bias.copy_(composed_rows(old_bias_W[used, None], spellings, special_ids)[:, 0])
    if is_tied and output.weight is not embedding.weight:
        raise ConfigError(f"{type(model).__name__}: its tied weights came apart; report this")
    is_special = np.zeros(new.vocabulary_size, np.bool_)
    is_special[list(special_ids)] = True
    sizes = spellings.sizes
    copied = np.count_nonzero((sizes == 1) & ~is_special)
    composed = np.count_nonzero((sizes > 1) & ~is_special)
    return RowCounts(
        copied=int(copied),
        composed=int(composed),
        special=len(special_ids),
        mean=int(new.vocabulary_size - copied - composed - len(special_ids)),
        unspelled=spellings.unspelled,
        never_written=spellings.never_written,
    )


def _names_with_vocabulary(model: Any) -> set[str]:
    """Names the weights and buffers whose shape follows from the size of the vocabulary: they have
    another one in a model of more ids."""
    config = copy.deepcopy(model.config)
    text_config = config.get_text_config()
    # Gemma 3n has a second size, `vocab_size_per_layer_input`.
    sizes = [name for name in vars(text_config) if name.startswith("vocab_size")]
    for name in {"vocab_size", *sizes}:
        setattr(text_config, name, (getattr(text_config, name) or 0) + 8)
    with torch.device("meta"):
        larger = type(model)(config)
    return _names_of_other_shape(model, _shapes(larger))


def _shapes(model: Any) -> dict[str, torch.Size]:
    """The shapes of weights and buffers, by name."""
    tensors = chain(model.named_parameters(), model.named_buffers())
    return {name: tensor.shape for name, tensor in tensors}


def _names_of_other_shape(model: Any, shapes: Mapping[str, torch.Size]) -> set[str]:
    """Names the weights and buffers of a model that have another shape among those given."""
    return {name for name, shape in _shapes(model).items() if shapes.get(name, shape) != shape}


def _check_tables(model: Any, names: Collection[str]) -> None:
    """Raises: ConfigError for weights other than embedding and head that have a row for each
    token."""
    if names:
        raise ConfigError(f"{type(model).__name__}: {min(names)} has a row for each token, too")


def composed_rows(rows_WH: Tensor, spellings: Spellings, special_ids: Mapping[int, int]) -> Tensor:
    """Makes (V, H) the row of each new token: the weighted mean of the rows that spell it, the row
    of its counterpart if it is special, or the mean of all rows if it has neither. Computed in
    float32.

    Long tokens have more weight: SmolLM2 with TinyLlama's vocabulary starts at 1.097 nats a byte of
    mathematical text in place of 1.107 with equal weights, with Qwen2.5's at 1.303 in place of
    1.352. The row of the first or of the last piece gives 1.58 to 2.22.
    """
    sizes = torch.from_numpy(spellings.sizes)
    new_ids_P = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    pieces_PH = rows_WH[torch.from_numpy(spellings.old_ids)].float()
    pieces_PH *= torch.from_numpy(spellings.weights)[:, None]
    means_VH = rows_WH.new_zeros(len(sizes), rows_WH.shape[1], dtype=torch.float32)
    means_VH.index_add_(0, new_ids_P, pieces_PH)
    means_VH[sizes == 0] = rows_WH.float().mean(0)
    if special_ids:
        means_VH[list(special_ids)] = rows_WH[list(special_ids.values())].float()
    return means_VH.to(rows_WH.dtype)


def special_counterparts(
    old_tokenizer: Any, new_tokenizer: Any, config: Any = None
) -> dict[int, int]:
    """Maps each special token of a new tokenizer to the old id whose row it takes: that of the same
    role, else of the same name. Tokens with neither are omitted. Both tokenizers are transformers'.

    Of several roles an old token gives its row to the new token of the first one in `ROLES`: with
    one row for an end of text, padding and an unknown token, each would have a third of its
    probability. A token of its name may take it again. A BOS counts only if the old tokenizer puts
    it before a text: TinyLlama's with the row of SmolLM2's, which begins turns of a chat, loses
    0.955 nats a byte of mathematics, with the mean of all rows 0.953.

    Args: config: the old model's. It names the end of a text where its tokenizer does not: a bare
        tokenizer.json.
    """
    special: dict[int, int] = {}
    for role in ROLES:  # the end of a text first: its row is an output, too
        new_id = getattr(new_tokenizer, f"{role}_id", None)
        old_id = getattr(old_tokenizer, f"{role}_id", None)
        if role == "bos_token" and old_tokenizer("a")["input_ids"][:1] != [old_id]:
            continue
        if new_id is not None and old_id is not None and old_id not in special.values():
            # A token may have several roles, as one that begins and ends a text; the first of
            # `ROLES` counts.
            special.setdefault(new_id, old_id)
    old_ids = old_tokenizer.get_vocab()
    # `added_tokens_decoder` has ordinary added tokens, too, which are spelled like others.
    for new_id, token in new_tokenizer.added_tokens_decoder.items():
        if token.special and str(token) in old_ids:
            special.setdefault(new_id, old_ids[str(token)])
    end = new_tokenizer.eos_token_id
    named = getattr(config, "eos_token_id", None)
    for old_id in named if isinstance(named, list) else [named]:
        # The default of a configuration may be an id of another vocabulary.
        if end is not None and isinstance(old_id, int) and old_id in old_ids.values():
            special.setdefault(end, old_id)
    return special
