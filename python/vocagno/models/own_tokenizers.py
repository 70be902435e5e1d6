"""Loads the tokenizers of teacher and student, and checks that each is its model's own."""

import json
import warnings
from pathlib import Path
from typing import Any

from vocagno.config.options import StudentConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.errors import ConfigError, naming
from vocagno.models.loading import teacher_settings
from vocagno.models.weights import check_folder, model_settings
from vocagno.tokens.student_tokenizer import StudentTokenizer, student_tokenizer
from vocagno.tokens.token_spans import TokenSpans
from vocagno.tokens.tokenizer_checks import PLAIN_PROBES

_LESS_PLAIN_PROBES = " and x", "    indented", "\n\tx\n\n"
"""Texts that some classes of transformers cut otherwise than the tokenizer.json that they load."""


def teacher_spans(config: TeacherConfig) -> TokenSpans:
    """Loads the teacher's tokenizer: `teacher.tokenizer`, or the one of its model."""
    if config.tokenizer is not None:
        spans = TokenSpans.from_pretrained(config.tokenizer)
        check_own_tokenizer(spans, config.model, "teacher")
        return spans
    assert config.model is not None
    if not check_folder(config.model, "teacher.model", config.gguf_file):
        teacher_settings(config)  # else the hub's answer would speak of a tokenizer
    return TokenSpans.from_pretrained(config.model, gguf_file=config.gguf_file)


def tokenizer_of_student(config: StudentConfig) -> StudentTokenizer:
    """Loads the student's tokenizer.
    Raises: ConfigError for a model that is not there, before the tokenizer is looked for in it, and
        for a tokenizer that cannot be used."""
    if config.model is not None:
        model_settings(config.model, "student.model")
    tokenizer = student_tokenizer(config.tokenizer_source, config.eos)
    # A new model has never read it, and of a name on the hub nothing more is fetched.
    is_local = config.model is not None and Path(config.tokenizer_source).expanduser().exists()
    file, bos = _declared_bos(config.tokenizer_source) if is_local else ("", None)
    if bos is not None and not tokenizer.spans.prefix_ids:
        warnings.warn(
            f"student: {file} asks for {bos!r} before every document (add_bos_token), but its "
            "tokenizer.json puts none, so none is put. A model that was trained with it loses more "
            "without; let the post-processor of tokenizer.json put it",
            stacklevel=2,
        )
    return tokenizer


def check_own_tokenizer(spans: TokenSpans, model: str | None, role: str) -> None:
    """Rejects a tokenizer that is another than the one in the model's folder.

    A tenth of the ids may differ, because reserved tokens are renamed and others added; but the ids
    of plain text may not. A model without a tokenizer in a folder is not checked.
    Args: role: "teacher" or "student", for errors.
    Raises: ConfigError for another tokenizer.
    """
    model_file = Path(model or "") / "tokenizer.json"
    if model is None or not model_file.is_file():
        return
    model_spans = TokenSpans(model_file)
    ids = spans.vocabulary()
    num_other = len(ids.items() - model_spans.vocabulary().items())
    fault = f"{num_other:,} of the {len(ids):,} tokens of {spans.name} have another id, or none, in"
    # Ids do not tell enough: a tokenizer with 9 % fewer merges has the ids of the model's and cut
    # 24 of 24 texts otherwise; one without the model's image tokens cut all of them alike.
    if num_other <= len(ids) / 10:
        probes, expected = (s.encode(PLAIN_PROBES).ids.tolist() for s in (spans, model_spans))
        if probes == expected:
            return
        fault = f"{spans.name} cuts plain text into other tokens than"
    raise ConfigError(
        f"{role}.tokenizer: {fault} {model_file}: it is not the tokenizer of {role}.model; omit it"
    )


def teacher_prefix(config: TeacherConfig, spans: TokenSpans) -> tuple[int, ...]:
    """Returns the ids that the teacher reads before a document: those that its tokenizer adds, else
    `teacher.bos`, else the BOS that its tokenizer_config.json asks for, else none.
    Raises: ConfigError for a BOS that is not a token, or not the one that the tokenizer adds."""
    option, bos = "teacher.bos", config.bos
    if spans.prefix_ids:
        if bos is not None and (spans.token_id(bos),) != spans.prefix_ids:
            raise ConfigError(
                f"{option}: {bos!r}: the teacher's tokenizer puts other ids before every document "
                f"itself ({', '.join(map(str, spans.prefix_ids))}); omit {option}"
            )
        return spans.prefix_ids
    if bos is None:
        option, bos = _declared_bos(config.tokenizer or config.model or "")
    if not bos:
        return ()
    index = spans.token_id(bos)
    if index is None:
        raise ConfigError(f"{option}: {bos!r} is not a token of the teacher's tokenizer")
    return (index,)


def _declared_bos(name: str) -> tuple[str, str | None]:
    """Finds the BOS that the tokenizer's settings ask for (`add_bos_token: true`) where its
    tokenizer.json adds none, as in DeepSeek's folders. A model that was trained with a BOS loses
    more on every token without it: Gemma 3 270M 1.28 nats a byte in place of 0.80.

    Args: name: of a folder, a hub repository or a tokenizer.json.
    Returns: the name of the file, for messages, and the token; None if there is none to add.
    """
    source = Path(name).expanduser()
    file = source / "tokenizer_config.json"
    # Settings next to a file of another name may be those of another tokenizer.
    if source.name in ("tokenizer.json", "tokenizer.json.gz"):
        file = source.with_name("tokenizer_config.json")
    elif not source.exists():  # a name on the hub, whose tokenizer was just loaded from there
        from transformers.utils import cached_file

        with naming(f"tokenizer: {name}"):
            optional = {"_raise_exceptions_for_missing_entries": False}
            file = Path(cached_file(name, "tokenizer_config.json", **optional) or file)
    if not file.is_file():
        return str(file), None
    try:
        settings = dict(json.loads(file.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{file}: not the settings of a tokenizer: {error}") from error
    token = settings.get("bos_token") if settings.get("add_bos_token") is True else None
    return str(file), token["content"] if isinstance(token, dict) else token


def _reads_alike(loaded: Any, tokenizer: StudentTokenizer, text: str) -> bool:
    """True if a tokenizer of transformers gives a text the student's ids."""
    ids: list[int] = loaded(text, add_special_tokens=False)["input_ids"]
    expected: list[int] = tokenizer.spans.encode([text]).ids.tolist()
    return ids == expected


def transformers_tokenizer(tokenizer: StudentTokenizer) -> Any:
    """Makes a transformers tokenizer of the student's, to save with a model.
    Raises: ConfigError if transformers makes another tokenizer of its files, as releases before
        5.22 do of DeepSeekMath's."""
    import transformers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    prefix = tokenizer.spans.prefix_ids
    bos = tokenizer.spans.token(prefix[0]) if len(prefix) == 1 else None
    if not Path(tokenizer.source).is_file():
        with naming("student.tokenizer"):
            loaded = AutoTokenizer.from_pretrained(tokenizer.source)
        for probe in PLAIN_PROBES:
            if not _reads_alike(loaded, tokenizer, probe):
                raise ConfigError(
                    f"student.tokenizer: transformers {transformers.__version__} cuts {probe!r} "
                    f"otherwise than the tokenizer.json of {tokenizer.source}, so the trained "
                    "model could not be used with its tokenizer; use transformers 5.22 or newer"
                )
        loaded.eos_token = tokenizer.eos
        loaded.bos_token = loaded.bos_token or bos
        probes = *_LESS_PLAIN_PROBES, f"a{tokenizer.eos}b"
        if all(_reads_alike(loaded, tokenizer, probe) for probe in probes):
            return loaded
        # transformers' class of this name makes parts of the tokenizer again. One without a class
        # of its own keeps those of the file.
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer.spans.tokenizer_copy(),
            chat_template=loaded.chat_template,
            model_max_length=loaded.model_max_length,
            padding_side=loaded.padding_side,
            truncation_side=loaded.truncation_side,
            **loaded.special_tokens_map,
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.spans.tokenizer_copy(), bos_token=bos, eos_token=tokenizer.eos
    )


def check_same_vocabulary(student: TokenSpans, teacher: TokenSpans, method: str) -> None:
    """Checks that each token of the student has the same id for the teacher, which may have more.
    Raises: ConfigError, which names the first token that does not."""
    teacher_ids = teacher.vocabulary()
    for token, index in sorted(student.vocabulary().items(), key=lambda entry: entry[1]):
        if teacher_ids.get(token) != index:
            counterpart = f"id {teacher_ids[token]}" if token in teacher_ids else "no token"
            raise ConfigError(
                f"guidance.method: {method} needs a teacher with the student's vocabulary, but "
                f"{token!r}, id {index} of {student.name}, is {counterpart} of {teacher.name}; use "
                "vocagno (or uld), which need no common vocabulary"
            )
