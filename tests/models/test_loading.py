"""What identifies a model in a folder, its weights and its tokenizer; the device of a process."""

import json
import os
import sys

import pytest
from tokenizers import Tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tiny_models import SIZES
from vocagno.config.options import StudentConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.errors import ConfigError
from vocagno.models import loading, own_tokenizers
from vocagno.tokens.token_spans import TokenSpans


@pytest.mark.parametrize("in_place", [True, False])
def test_other_weights_of_the_same_size_and_time_are_others(tmp_path, monkeypatch, in_place):
    """As after a copy that keeps times, or a restored backup."""
    weights = tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"one")
    time = weights.stat().st_mtime_ns
    config, read = TeacherConfig(model=str(weights.parent)), []
    digest = loading.file_digest
    monkeypatch.setattr(loading, "file_digest", lambda file: read.append(file) or digest(file))

    def identity():
        return loading.weights_identity(config, tmp_path / "cache")

    first = identity()
    assert identity() == first
    assert read == [weights]
    other = weights if in_place else weights.with_name("other")
    other.write_bytes(b"two")
    os.utime(other, ns=(time, time))
    other.replace(weights)
    assert (weights.stat().st_size, weights.stat().st_mtime_ns) == (3, time)
    assert identity() != first
    weights.write_bytes(b"one")
    assert identity() == first


@pytest.mark.skipif(sys.platform != "linux", reason="its names of files are bytes")
def test_a_folder_whose_name_is_not_utf_8(tmp_path):
    identities = []
    for name in ("model", os.fsdecode(b"model-\xff")):
        weights = tmp_path / name / "model.safetensors"
        weights.parent.mkdir()
        weights.write_bytes(b"one")
        config = TeacherConfig(model=str(weights.parent))
        identities.append(loading.weights_identity(config, tmp_path / "cache"))
    assert identities[0] == identities[1]


def test_the_gpus_of_apple_are_not_used(monkeypatch):
    """They have no float64."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    assert loading.local_device() == torch.device("cpu")


def test_a_new_student_has_the_special_ids_of_its_tokenizer():
    """OLMo 2's own EOS is beyond them, and its padding an id that would never be learnt."""
    architecture = {"model_type": "olmo2", **SIZES, "bos_token_id": 1}
    config, ids = StudentConfig(tokenizer="t.json", architecture=architecture), torch.arange(20)
    settings = loading.student_settings(config, 20, 8, eos_token_id=3, bos_token_id=None)
    model = loading.load_student(config, settings, seed=0)
    model(ids[None], labels=ids[None]).loss.backward()
    assert model.get_input_embeddings().weight.grad[:-1].any(1).all()
    defaults = model.generation_config
    assert (defaults.bos_token_id, defaults.eos_token_id, defaults.pad_token_id) == (1, 3, None)


def test_a_bos_that_only_the_settings_of_the_tokenizer_ask_for_is_read(
    tokenizers, tmp_path, monkeypatch
):
    """DeepSeek's folders are such. A file of another name may be another tokenizer's."""
    tokenizer = Tokenizer.from_str(tokenizers["byte-level"].to_str())
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokenizer.save(str(tmp_path / "other.json"))
    spans, settings = TokenSpans(tmp_path), tmp_path / "tokenizer_config.json"
    places = {"model": str(tmp_path)}, {"tokenizer": str(tmp_path / "tokenizer.json")}
    bos, other = (tokenizer.token_to_id("<s>"),), {"tokenizer": str(tmp_path / "other.json")}

    def prefix(**options):
        return own_tokenizers.teacher_prefix(TeacherConfig(**options), spans)

    for token in ("<s>", {"content": "<s>"}):
        settings.write_text(json.dumps({"add_bos_token": True, "bos_token": token}))
        assert [prefix(**place) for place in (*places, other)] == [bos, bos, ()]
        assert prefix(**places[0], bos="b") == (tokenizer.token_to_id("b"),)
        assert prefix(**places[0], bos="") == ()
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
        with pytest.warns(UserWarning, match="asks for '<s>' before every document"):
            own_tokenizers.tokenizer_of_student(StudentConfig(**places[0], eos="<|endoftext|>"))
    with monkeypatch.context() as patch:  # a name on the hub
        patch.setattr("transformers.utils.cached_file", lambda name, file, **_: tmp_path / file)
        assert prefix(tokenizer="an/organization") == bos
        patch.setattr("transformers.utils.cached_file", lambda name, file, **_: None)
        assert prefix(tokenizer="an/organization") == ()
    for fields in ({"add_bos_token": False, "bos_token": "<s>"}, {"bos_token": "<s>"}):
        settings.write_text(json.dumps(fields))
        assert [prefix(**place) for place in places] == [(), ()]
    settings.write_text(json.dumps({"add_bos_token": True, "bos_token": "<unknown>"}))
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json: '<unknown>' is not a token"):
        prefix(**places[0])
    settings.write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json: not the settings of"):
        prefix(**places[0])


def test_a_bos_that_the_tokenizer_does_not_put_is_refused(tmp_path, tokenizers):
    tokenizer = Tokenizer.from_str(tokenizers["llama"].to_str())
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    spans = TokenSpans(tmp_path)
    name = tokenizer.id_to_token(spans.prefix_ids[0])
    config = {"tokenizer": str(tmp_path / "tokenizer.json")}
    assert own_tokenizers.teacher_prefix(TeacherConfig(**config, bos=name), spans)
    for bos in ("", "e"):
        with pytest.raises(ConfigError, match=r"teacher.bos: .* puts other ids before every"):
            own_tokenizers.teacher_prefix(TeacherConfig(**config, bos=bos), spans)


def test_a_tokenizer_with_fewer_merges_is_another(tokenizers, tmp_path):
    """All of its tokens have the ids of the model's, but its sequences are others. Tokens that the
    model has more, as for images, change nothing."""
    tokenizer_json = json.loads(tokenizers["byte-level"].to_str())
    plain = TokenSpans(tokenizers["byte-level"])
    tokenizers["byte-level"].save(str(tmp_path / "tokenizer.json"))
    vocabulary, merges = tokenizer_json["model"]["vocab"], tokenizer_json["model"]["merges"]
    gone = merges[-round(len(vocabulary) * 0.09) :]
    tokenizer_json["model"]["merges"] = merges[: -len(gone)]
    for pair in gone:
        del vocabulary["".join(pair)]
    fewer = TokenSpans(Tokenizer.from_str(json.dumps(tokenizer_json)))
    with pytest.raises(ConfigError, match="cuts plain text into other tokens than"):
        own_tokenizers.check_own_tokenizer(fewer, str(tmp_path), "student")

    with_images = Tokenizer.from_str(tokenizers["byte-level"].to_str())
    with_images.add_special_tokens([f"<image_{i}>" for i in range(len(vocabulary) // 4)])
    with_images.save(str(tmp_path / "tokenizer.json"))
    own_tokenizers.check_own_tokenizer(plain, str(tmp_path), "student")


def test_a_teacher_whose_frequencies_depend_on_the_batch_is_refused(tmp_path):
    """The losses of a text beyond the original context of Phi-3 change those of its batch."""
    factors = {"short_factor": [1.0] * 48, "long_factor": [4.0] * 48}
    sizes = {"original_max_position_embeddings": 64, "max_position_embeddings": 256}
    scaling = {"type": "longrope", **factors}
    transformers.Phi3Config(**sizes, rope_scaling=scaling).save_pretrained(tmp_path)
    loading.check_context(TeacherConfig(model=str(tmp_path), context=64))
    with pytest.raises(ConfigError, match=r"teacher.context: 65 tokens, .* to at most 64$"):
        loading.check_context(TeacherConfig(model=str(tmp_path), context=65))
