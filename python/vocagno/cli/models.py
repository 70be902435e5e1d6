"""The commands `vocagno transfer` and `vocagno unpack`: a model folder, made from another model."""

import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
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
    model = causal_model(options.model, "model", dtype="auto")
    with naming("model"):
        old_tokenizer = AutoTokenizer.from_pretrained(options.model)
    new_tokenizer = _new_tokenizer(options.tokenizer, options.eos)
    old, new = TokenSpans(old_tokenizer), TokenSpans(new_tokenizer)
    result: dict[str, Any] = {"tokens_before": old.vocabulary_size, "tokens": new.vocabulary_size}
    if texts:
        result |= _measure(model, old, texts, "_before")
    counts = transfer_(model, old, new, special_counterparts(old_tokenizer, new_tokenizer))
    result |= {f"{name}_rows": count for name, count in asdict(counts).items()}
    _set_special_ids(model, new_tokenizer)
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
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from vocagno.models.weights import causal_model

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
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
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
            definition = TokenSpans.from_pretrained(name).tokenizer_copy()
            tokenizer = PreTrainedTokenizerFast(tokenizer_object=definition)
        else:
            tokenizer = AutoTokenizer.from_pretrained(name)
    if eos is not None or tokenizer.eos_token is None:  # a bare tokenizer.json declares none
        tokenizer.eos_token = student_tokenizer(name, eos).eos
    return tokenizer


def _measure(model: Any, spans: "TokenSpans", texts: list[str], suffix: str) -> dict[str, float]:
    """Measures bytes a token and nats a byte, over the tokens that have a loss."""
    import numpy as np

    from vocagno.teacher.scorer import TransformersScorer
    from vocagno.teacher.scoring import Teacher
    from vocagno.teacher.windows import TextReader

    context = min(_CONTEXT, getattr(model.config, "max_position_embeddings", _CONTEXT))
    reader = TextReader(spans, spans.prefix_ids, context=context, min_context=context // 4)
    teacher = Teacher(TransformersScorer(model.eval(), batch_tokens=2048, width=context), reader)
    nats = num_bytes = num_tokens = 0.0
    for scores in teacher.score(texts):
        has_loss = np.isfinite(scores.nll)
        nats += float(scores.nll[has_loss].sum(dtype=np.float64))
        num_bytes += int(np.diff(scores.spans[has_loss], axis=1).sum())
        num_tokens += int(has_loss.sum())
    return {
        f"bytes_per_token{suffix}": num_bytes / num_tokens,
        f"nats_per_byte{suffix}": nats / num_bytes,
    }


def _set_special_ids(model: Any, tokenizer: Any) -> None:
    """Sets the special ids of the new tokenizer in the configurations of a model."""
    for role in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):
        for config in (model.config, model.config.get_text_config(), model.generation_config):
            # Few configurations name the id of unknown text.
            if config is not None and hasattr(config, role):
                setattr(config, role, getattr(tokenizer, role))


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

    temporary = folder.with_name(f"{folder.name}.tmp")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(temporary):
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        (temporary / "README.md").write_text(f"# {folder.name}\n\n{card}\n", encoding="utf-8")
        publish_folder(temporary, folder)
    print(folder, file=sys.stderr)
