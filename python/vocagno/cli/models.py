"""The commands `vocagno transfer` and `vocagno unpack`: a model folder, made from another model."""

import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from vocagno.config.arguments import CORPUS
from vocagno.errors import InputError, naming

if TYPE_CHECKING:
    from vocagno.tokens.token_spans import TokenSpans

_CONTEXT = 512
"""The longest run of tokens on which the losses of --text are measured."""


def add_transfer(parser: Any) -> None:
    """Give a model another tokenizer, with rows made from those of the old one.

    A token that both vocabularies have keeps its rows. Any other token gets the mean of the rows of
    the old tokens that spell it, weighted by their bytes. The new model is worse until it is
    trained. Its teacher can be the old model:
    vocagno train --student.model FOLDER --teacher.model MODEL.
    """
    parser.add_argument("model", type=str, help="The model: a folder or a hub name.")
    parser.add_argument(
        "tokenizer",
        type=str,
        help="The new tokenizer: a folder, a hub name, or a tokenizer.json.",
    )
    parser.add_argument("--out", type=Path, required=True, help="The new folder for the model.")
    parser.add_argument(
        "--eos", type=str | None, help="The token that ends a text, if the tokenizer declares none."
    )
    parser.add_argument(
        "--text",
        type=str | None,
        help=f"Measure nats a byte on this corpus, before and after: {CORPUS}.",
    )


def add_unpack(parser: Any) -> None:
    """Make a model folder from a GGUF file: weights that train, configuration and tokenizer."""
    parser.add_argument("file", type=Path, help="The GGUF file.")
    parser.add_argument("--out", type=Path, required=True, help="The new folder for the model.")


def transfer(options: Any) -> dict[str, Any]:
    """Writes the model with the new tokenizer. Returns what its rows were made from."""
    from transformers import AutoTokenizer

    from vocagno.models.transfer import special_counterparts, transfer_
    from vocagno.models.weights import causal_model
    from vocagno.tokens.token_spans import TokenSpans

    _check_new(options.out)
    texts = [] if options.text is None else _texts(options.text)
    # In capitals as in its help: messages about `model` speak of options that this command lacks.
    model = causal_model(options.model, "MODEL", dtype="auto")
    with naming("MODEL"):
        old_tokenizer = AutoTokenizer.from_pretrained(options.model)
    new_tokenizer = _new_tokenizer(options.tokenizer, options.eos)
    old, new = TokenSpans(old_tokenizer), TokenSpans(new_tokenizer)
    result: dict[str, Any] = {"tokens_before": old.vocabulary_size, "tokens": new.vocabulary_size}
    if texts:
        result |= _measure(model, old, texts, "_before")
    special_ids = special_counterparts(old_tokenizer, new_tokenizer, model.config)
    if new_tokenizer.eos_token_id not in special_ids:
        print(
            f"warning: the model names no end of a text whose row {new_tokenizer.eos_token} could "
            "take; it begins with the mean of all rows",
            file=sys.stderr,
        )
    counts = transfer_(model, old, new, special_ids)
    result |= {f"{name}_rows": count for name, count in asdict(counts).items()}
    _set_special_ids(model, old_tokenizer, new_tokenizer)
    _keep_chat_template(old_tokenizer, new_tokenizer)
    if texts:
        result |= _measure(model, new, texts, "")
    card = (
        f"The weights of `{Path(options.model).name}` with the tokenizer of "
        f"`{Path(options.tokenizer).name}`: {counts.copied:,} rows are copied, {counts.composed:,} "
        "are means of the rows of the tokens that spell them, weighted by their bytes. To be "
        "trained before it is used."
    )
    _write(model, new_tokenizer, options.out, card)
    return result


def unpack(options: Any) -> dict[str, Any]:
    """Writes the model of a GGUF file as a float32 folder that transformers reads."""
    import torch
    from transformers import AutoModelForCausalLM

    from vocagno.models.loading import check_vocabulary
    from vocagno.models.weights import causal_model
    from vocagno.tokens.gguf_tokenizer import tokenizer_of_gguf

    _check_new(options.out)
    folder, name = str(options.file.parent), options.file.name
    if not options.file.is_file():
        raise InputError(f"file: there is no file {options.file}")
    if find_spec("gguf") is None:  # transformers' own message names torch, too
        raise InputError("file: reading a GGUF file needs gguf: pip install gguf")
    packed = causal_model(folder, "file", gguf_file=name, dtype=torch.float32)
    config = packed.config
    if hasattr(config, "quantization_config"):  # transformers saves no model that has one
        del config.quantization_config
    with naming("file"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(packed.state_dict())
        model.generation_config = packed.generation_config
        tokenizer = tokenizer_of_gguf(folder, name)
        check_vocabulary(model, max(tokenizer.get_vocab().values()) + 1, "")
    _write(model, tokenizer, options.out, f"The weights of `{name}`, unpacked to float32.")
    return {
        "weights": sum(weight.numel() for weight in model.parameters()),
        "out": str(options.out),
    }


def _check_new(folder: Path) -> None:
    if folder.exists():
        raise InputError(f"--out: {folder} exists already; name a new folder, or remove it")


def _texts(corpus: str) -> list[str]:
    from vocagno.data.corpus import read_batches

    texts = [text for batch in read_batches(corpus) for text in batch if text]
    if not texts:
        raise InputError(f"--text: {corpus} has no text to measure on; name a corpus that has some")
    return texts


def _new_tokenizer(name: str, eos: str | None) -> Any:
    """Loads the tokenizer of a folder, a hub name or a tokenizer.json, and sets its EOS."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    from vocagno.tokens.student_tokenizer import student_tokenizer
    from vocagno.tokens.token_spans import TokenSpans

    with naming("tokenizer"):
        if Path(name).is_file():
            spans = TokenSpans.from_pretrained(name)
            definition = spans.tokenizer_copy()
            # Its BOS has no name in a bare file, but begins every text.
            prefix = [definition.id_to_token(index) for index in spans.prefix_ids]
            bos = prefix[0] if len(prefix) == 1 else None
            tokenizer = PreTrainedTokenizerFast(tokenizer_object=definition, bos_token=bos)
        else:
            tokenizer = AutoTokenizer.from_pretrained(name)
    if eos is not None or tokenizer.eos_token is None:  # a bare tokenizer.json declares none
        tokenizer.eos_token = student_tokenizer(name, eos).eos
    return tokenizer


def _measure(model: Any, spans: "TokenSpans", texts: list[str], suffix: str) -> dict[str, float]:
    """Measures bytes a token and nats a byte, over the tokens that have a loss."""
    import numpy as np

    from vocagno.models.weights import largest_input
    from vocagno.teacher.scorer import TransformersScorer
    from vocagno.teacher.scoring import Teacher
    from vocagno.teacher.windows import TextReader

    context = min(_CONTEXT, largest_input(model.config) or _CONTEXT)
    reader = TextReader(spans, spans.prefix_ids, context=context, min_context=context // 4)
    teacher = Teacher(TransformersScorer(model.eval(), batch_tokens=2048, width=context), reader)
    nats = num_bytes = num_tokens = 0.0
    for scores in teacher.score(texts):
        has_loss = np.isfinite(scores.nll)
        nats += float(scores.nll[has_loss].sum(dtype=np.float64))
        num_bytes += int(np.diff(scores.spans[has_loss], axis=1).sum())
        num_tokens += int(has_loss.sum())
    if not num_bytes:
        raise InputError("--text: no token of this text has a loss; name one of longer texts")
    return {
        f"bytes_per_token{suffix}": num_bytes / num_tokens,
        f"nats_per_byte{suffix}": nats / num_bytes,
    }


_LISTS_OF_IDS = (
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "sequence_bias",
)
"""Options of a generation that name ids of the old vocabulary."""


def _set_special_ids(model: Any, old_tokenizer: Any, tokenizer: Any) -> None:
    """Sets the special ids of the new tokenizer in the configurations of a model. Where the old
    model ended in several tokens, as a chat model ends its turns, the new one ends in those that
    its vocabulary has, too. Other ids of the old vocabulary are omitted, with a warning."""
    configs = [model.config, model.config.get_text_config()]
    if model.generation_config is not None:
        configs.append(model.generation_config)
    ids = tokenizer.get_vocab()
    for config in configs:
        for role in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):
            # Few configurations name the id of unknown text.
            if not hasattr(config, role):
                continue
            before, new_id = getattr(config, role), getattr(tokenizer, role)
            if isinstance(before, list):
                names = old_tokenizer.convert_ids_to_tokens(before)
                more_ids = [ids[name] for name in names if ids.get(name, new_id) != new_id]
                new_id = [new_id, *dict.fromkeys(more_ids)] if more_ids else new_id
            # An embedding learns nothing at the id that pads, and a text also ends in its EOS.
            if role == "pad_token_id" and before is None and new_id == tokenizer.eos_token_id:
                new_id = None
            setattr(config, role, new_id)
        for name in _LISTS_OF_IDS:
            if getattr(config, name, None) is not None:
                setattr(config, name, None)
                print(
                    f"warning: {name} is omitted: it names ids of the old vocabulary",
                    file=sys.stderr,
                )


def _keep_chat_template(old_tokenizer: Any, new_tokenizer: Any) -> None:
    """Gives the new tokenizer the model's chat template, if it has none and knows its tokens."""
    template = old_tokenizer.chat_template
    if template is None or new_tokenizer.chat_template is not None:
        return
    vocabulary = new_tokenizer.get_vocab()
    names = [str(token) for token in old_tokenizer.added_tokens_decoder.values() if token.special]
    if lost := [name for name in names if name in str(template) and name not in vocabulary]:
        print(
            f"warning: the chat template is omitted: the new tokenizer has no {', '.join(lost)}",
            file=sys.stderr,
        )
        return
    new_tokenizer.chat_template = template


def _write(model: Any, tokenizer: Any, folder: Path, card: str) -> None:
    """Writes a folder that `from_pretrained` reads, all of it or nothing."""
    from vocagno.training.checkpoint import publish_folder, written_whole

    folder.parent.mkdir(parents=True, exist_ok=True)
    # A new name: a folder that is there may hold what a killed command left, or a user's files.
    temporary = folder.with_name(f"{folder.name}.{token_hex(8)}.tmp")
    with written_whole(temporary, str(folder)):
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        (temporary / "README.md").write_text(f"# {folder.name}\n\n{card}\n", encoding="utf-8")
        publish_folder(temporary, folder)
    print(folder, file=sys.stderr)
