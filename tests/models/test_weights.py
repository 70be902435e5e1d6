"""What is loaded is what the file says: all weights of the configuration, and no others."""

import json
import shutil

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from architectures import tiny_config
from folders import LFS_POINTER
from gguf_files import write_gguf
from tiny_models import scaled_models, tiny_llama
from vocagno.config.options import StudentConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.errors import ConfigError
from vocagno.models.loading import load_student, load_teacher, student_settings, teacher_settings
from vocagno.models.own_tokenizers import teacher_spans, tokenizer_of_student
from vocagno.models.weights import largest_input

IDS = 50
HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"
MATRIX = "model.layers.1.mlp.up_proj.weight"
CPU = torch.device("cpu")


def teacher(folder, **options):
    return load_teacher(TeacherConfig(model=str(folder), **options), CPU)


def student(folder):
    config = StudentConfig(model=str(folder))
    return load_student(config, student_settings(config, IDS, 8), seed=0)


def evaluated(folder):
    """The model as it is loaded for an evaluation."""
    pytest.importorskip("lm_eval", reason="evaluation needs lm-eval")
    from vocagno.evaluation.running import load

    return load(str(folder), dtype="float32", device="cpu", gguf_file=None, batch_size=1).model


def with_weights(folder, change, ids=IDS, **options):
    """A saved Llama whose weights `change` has made others of."""
    tiny_llama(ids, **options).save_pretrained(folder)
    weights = change(load_file(folder / "model.safetensors"))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def without(*names):
    return lambda weights: {key: weights[key] for key in weights if key not in names}


def renamed(old, new):
    """Weights whose names begin with `new` in place of `old`."""
    return lambda weights: {new + key.removeprefix(old): weights[key] for key in weights}


def with_layers(folder, number):
    """A saved Llama of two layers whose configuration has another number."""
    return with_settings(with_weights(folder, dict), num_hidden_layers=number, layer_types=None)


def with_index_that_omits(folder, name):
    """A Llama of one shard, whose index and file know nothing of a weight."""
    with_weights(folder, without(name))
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    names = load_file(folder / "model-00001-of-00001.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def base_alone(folder):
    tiny_llama(IDS).model.save_pretrained(folder)
    return folder


INNER = "model.layers.0._orig_mod."
BROKEN = {
    "head": (lambda f: with_weights(f, without(HEAD)), rf"1 missing \({HEAD}\).*without its head"),
    "base": (base_alone, rf"1 missing \({HEAD}\)\. The model was saved without its head"),
    "matrix": (lambda f: with_weights(f, without(MATRIX)), rf"1 missing \({MATRIX}\)\. Missing"),
    "embedding": (lambda f: with_weights(f, without(EMBEDDINGS)), rf"1 missing \({EMBEDDINGS}\)"),
    "tied embedding": (
        lambda f: with_weights(f, without(EMBEDDINGS), tie_word_embeddings=True),
        rf"2 missing \({HEAD}, {EMBEDDINGS}\)",
    ),
    "index": (lambda f: with_index_that_omits(f, MATRIX), rf"1 missing \({MATRIX}\)"),
    "more layers": (lambda f: with_layers(f, 3), r"9 missing \(model.layers.2.input_.*, \.\.\.\)"),
    "fewer layers": (lambda f: with_layers(f, 1), r"9 unexpected \(model.layers.1.input_layer"),
    "biases": (
        lambda f: with_settings(with_weights(f, dict, attention_bias=True), attention_bias=False),
        r"8 unexpected \(model.layers.0.self_attn.k_proj.bias, ",
    ),
    "shape": (
        lambda f: with_weights(f, lambda weights: {**weights, HEAD: weights[HEAD][:40].clone()}),
        rf"1 of another shape \({HEAD} \(40, 32\), not \(50, 32\)\)\. Missing ones would be",
    ),
    "compiled": (lambda f: with_weights(f, renamed("", "_orig_mod.")), "model._orig_mod`"),
    "compiled layer": (
        lambda f: with_weights(f, renamed_inside("model.layers.0.", INNER)),
        "9 missing .*; 9 unexpected .*`_orig_mod.` of torch.compile",
    ),
    "peft": (lambda f: with_weights(f, renamed("", "base_model.model.")), "merge_and_unload"),
    "parallel": (lambda f: with_weights(f, renamed("", "module.")), "21 missing .*`model.module`"),
    "prefix": (lambda f: with_weights(f, renamed("", "a.b.")), "Take the prefix `a.b.` out of"),
}


def renamed_inside(old, new):
    return lambda weights: {key.replace(old, new): weights[key] for key in weights}


LOADED_AS = {"teacher.model": teacher, "student.model": student, "model": evaluated}


@pytest.mark.parametrize("option", LOADED_AS)
@pytest.mark.parametrize("name", BROKEN)
def test_weights_that_are_not_those_of_the_configuration_are_named(
    tmp_path, tokenizers, name, option
):
    make, words = BROKEN[name]
    folder = make(tmp_path / "model")
    tokenizers["byte-level"].save(str(folder / "tokenizer.json"))
    with pytest.raises(ConfigError, match=f"{option}: .*{folder} .*{words}"):
        LOADED_AS[option](folder)


def same(loaded, saved, ids=IDS):
    inputs = torch.arange(10)[None] % ids
    with torch.no_grad():
        torch.testing.assert_close(loaded(inputs).logits, saved(inputs).logits, rtol=0, atol=0)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("load", [teacher, student])
def test_a_sound_llama_loads_without_a_word(tmp_path, capfd, tied, load):
    folder = with_weights(tmp_path / "model", dict, tie_word_embeddings=tied)
    assert (HEAD in load_file(folder / "model.safetensors")) != tied
    capfd.readouterr()
    same(load(folder), tiny_llama(IDS, tie_word_embeddings=tied))
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if line.strip() and "Loading weights" not in line] == []


GEMMA_3 = {"vocab_size": IDS, "tie_word_embeddings": True}


@pytest.mark.parametrize("number", range(4), ids=["gemma2", "cohere", "granite", "gemma3"])
def test_models_that_scale_or_tie_load(tmp_path, number):
    if number == 3:
        torch.manual_seed(0)
        saved = AutoModelForCausalLM.from_config(tiny_config("gemma3_text", **GEMMA_3)).eval()
    else:
        saved = list(scaled_models())[number].eval()
    saved.save_pretrained(tmp_path)
    options = {"attention": saved.config._attn_implementation}
    same(teacher(tmp_path, **options), saved)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("llama", ["model.layers.0.self_attn.rotary_emb.inv_freq"]),
        ("gpt2", ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"]),
        ("gpt_neox", ["gpt_neox.layers.0.attention.bias"]),
        ("gptj", ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"]),
        ("gpt_neo", ["transformer.h.0.attn.attention.bias"]),
        ("codegen", ["transformer.h.0.attn.causal_mask"]),
    ],
)
def test_what_models_compute_may_stand_in_old_files(tmp_path, kind, names):
    saved = AutoModelForCausalLM.from_config(tiny_config(kind)).eval()
    saved.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights |= {name: torch.zeros(4) for name in names}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    same(teacher(tmp_path), saved)


def test_a_head_of_its_own_stays_although_the_configuration_ties_it(tmp_path, tokenizers):
    """lm-eval ties the weights of each model it is given, if its configuration says so."""
    ids = tokenizers["byte-level"].get_vocab_size()
    head = torch.arange(32.0).repeat(ids, 1)
    folder = with_weights(tmp_path, lambda w: {**w, HEAD: head}, ids, tie_word_embeddings=True)
    tokenizers["byte-level"].save(str(folder / "tokenizer.json"))
    # Else old releases of transformers take it for Llama's own, and add its special tokens.
    settings = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    (folder / "tokenizer_config.json").write_text(settings)
    for model in (evaluated(folder), student(folder)):
        torch.testing.assert_close(model.lm_head.weight.detach(), head)
        assert not model.config.tie_word_embeddings


def quantized(folder, *names):
    """A Llama whose layers are BitNet's, four numbers a byte and a scale, and more tensors."""

    def pack(weights):
        layers = [name for name in weights if "proj" in name]
        packed = {n: torch.full_like(weights[n][::4], 85, dtype=torch.uint8) for n in layers}
        scales = {name: torch.ones(1) for name in (*(f"{n}_scale" for n in layers), *names)}
        return weights | packed | scales

    method = {"quant_method": "bitnet", "modules_to_not_convert": ["lm_head"]}
    return with_settings(with_weights(folder, pack), quantization_config=method)


def with_settings(folder, **settings):
    """A saved model with other settings in its configuration."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return folder


@pytest.mark.parametrize("name", ["model.layers.2.mlp.up_proj.weight", "lm_head_2.weight"])
def test_weights_beyond_the_layers_of_a_quantized_model_are_named(tmp_path, capsys, name):
    """What a quantizer keeps in a layer is only said."""
    kept_names = [f"{MATRIX}.absmax", "model.layers.1.self_attn.k_scale"]
    teacher(quantized(tmp_path, *kept_names))
    words = f"warning: teacher.model: not read from {tmp_path}: {', '.join(kept_names)}\n"
    assert words in capsys.readouterr().err
    with pytest.raises(ConfigError, match=rf"teacher.model: .* 1 unexpected \({name}\)"):
        teacher(quantized(tmp_path, *kept_names, name))


@pytest.mark.parametrize("scaled", ["all", "all but one", "none", "activations"])
def test_float8_weights_need_their_scales(tmp_path, scaled):
    """transformers dequantizes them on a CPU; without a scale a weight of 0.1 was read as 448."""
    originals = {}

    def to_float8(weights):
        layers = [name for name in weights if "proj" in name]
        left_out = {"all": [], "all but one": layers[:1]}.get(scaled, layers)
        for name in layers:
            originals[name] = weights[name]
            scale = weights[name].abs().max() / 448
            rows, columns = weights[name].shape
            weights[name] = (weights[name] / scale).to(torch.float8_e4m3fn)
            if name not in left_out:
                weights[f"{name}_scale_inv"] = scale.expand(rows // 16, columns // 16).clone()
            elif scaled == "activations":
                weights[name.replace("weight", "activation_scale")] = torch.ones(1)
        return weights

    method = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    method |= {"weight_block_size": [16, 16]}  # old releases take no blocks larger than a weight
    with_settings(with_weights(tmp_path, to_float8), quantization_config=method)
    if scaled == "all":
        loaded = teacher(tmp_path).state_dict()
        for name, original in originals.items():
            largest = float(original.abs().max())
            torch.testing.assert_close(loaded[name], original, atol=largest / 16, rtol=0)
        return
    count = 1 if scaled == "all but one" else len(originals)
    words = rf"teacher\.model: .* has {count} float8 weights without"
    with pytest.raises(ConfigError, match=words):
        teacher(tmp_path)


def test_a_plain_cast_to_float8_is_said(tmp_path, capsys):
    """No quantization is configured, so the values may be meant as they are."""
    folder = with_weights(tmp_path, lambda w: {n: v.to(torch.float8_e4m3fn) for n, v in w.items()})
    teacher(folder)
    assert "float8 weights without a scale; they are taken as they are" in capsys.readouterr().err


@pytest.fixture
def adapter(tmp_path):
    """An adapter by itself."""
    peft = pytest.importorskip("peft", reason="adapters are made by peft")
    tiny_llama(IDS).save_pretrained(tmp_path / "base")
    inner = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    options = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"])
    peft.get_peft_model(inner, options).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize("with_peft", [True, False])
@pytest.mark.parametrize("beside_weights", [True, False])
def test_an_adapter_is_neither_applied_nor_left_out(
    adapter, tmp_path, monkeypatch, with_peft, beside_weights
):
    from transformers.models.auto import auto_factory

    if not with_peft:
        monkeypatch.setattr(auto_factory, "is_peft_available", lambda: False)
    if beside_weights:
        shutil.copytree(tmp_path / "base", adapter, dirs_exist_ok=True)
    for load, option in ((teacher, "teacher"), (student, "student")):
        with pytest.raises(ConfigError, match=rf"{option}.model: {adapter} has an adapter .*move"):
            load(adapter)


def test_merged_weights_load_without_the_adapter_s_files(adapter, tmp_path):
    shutil.copytree(tmp_path / "base", adapter, dirs_exist_ok=True)
    for file in adapter.glob("adapter_*"):
        file.unlink()
    loaded = student(adapter)
    assert all(weight.requires_grad for weight in loaded.parameters())
    same(loaded, tiny_llama(IDS))


@pytest.mark.parametrize(
    ("path", "of_teacher", "of_student"),
    [
        ("m.gguf", "a file, .* and the file with teacher.gguf_file", "is a file, .*vocagno unpack"),
        (".", r"GGUF files \(m.gguf\); name one with teacher.gguf_file", "GGUF .*vocagno unpack"),
        ("none", "teacher.model: no folder", "student.model: no folder"),
    ],
)
def test_what_is_no_folder_of_weights_is_named(tmp_path, path, of_teacher, of_student):
    """Before a tokenizer is looked for there."""
    (tmp_path / "m.gguf").write_bytes(b"GGUF\3\0\0\0\xff")
    model = str(tmp_path / path)
    for ask in (teacher_spans, teacher_settings):
        with pytest.raises(ConfigError, match=f"^teacher.model: .*{of_teacher}|^{of_teacher}"):
            ask(TeacherConfig(model=model))
    for ask in (tokenizer_of_student, lambda config: student_settings(config, 1, 1)):
        with pytest.raises(ConfigError, match=f"^student.model: .*{of_student}|^{of_student}"):
            ask(StudentConfig(model=model))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "m.gguf"])
def test_a_pointer_to_weights_is_named(tmp_path, name):
    tiny_llama(IDS).save_pretrained(tmp_path)
    (tmp_path / name).write_bytes(LFS_POINTER)
    gguf_file = name if name == "m.gguf" else None
    with pytest.raises(ConfigError, match=f"{name}: is a pointer .* `git lfs pull`"):
        teacher(tmp_path, gguf_file=gguf_file)


def test_a_name_that_the_hub_does_not_know_is_that_of_a_model(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"^student.model: no folder models/x, and not found on"):
        tokenizer_of_student(StudentConfig(model="models/x"))
    with pytest.raises(ConfigError, match=r"^teacher.model: no folder models/x, and not found on"):
        teacher_spans(TeacherConfig(model="models/x"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"omitted": "blk.1.attn_norm.weight"}, r"1 missing \(model.layers.1.input_layernorm"),
        ({"omitted": "token_embd.weight"}, rf"1 missing \({EMBEDDINGS}"),
        ({"added": ["blk.2.attn_norm.weight"]}, r"1 unexpected \(blk.2.attn_norm.weight\)"),
        ({"added": ["blk.0.attn_q.bias"]}, r"1 unexpected \(blk.0.attn_q.bias\)"),
    ],
)
def test_tensors_of_a_gguf_file_that_are_not_the_model_s_are_named(tmp_path, options, words):
    write_gguf(tmp_path / "m.gguf", IDS, **options)
    with pytest.raises(ConfigError, match=f"teacher.model: .*{words}"):
        teacher(tmp_path, gguf_file="m.gguf")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"added": ["rope_freqs.weight"], "value": 8}, r"\(rope_freqs.weight\)"),
        ({"added": ["rope_factors_long.weight"], "value": 2}, r"\(rope_factors_long.weight\)"),
        ({"scaling": "YARN"}, r"\(llama.rope.scaling.type: yarn\)"),
    ],
)
def test_scaled_rotary_frequencies_that_transformers_does_not_read_are_refused(
    tmp_path, options, words
):
    """Llama 3.1's are in a tensor. Without the scaling it is another model beyond some tokens."""
    write_gguf(tmp_path / "m.gguf", IDS, **options)
    with pytest.raises(ConfigError, match=f"scales its rotary frequencies {words}, which transf"):
        teacher(tmp_path, gguf_file="m.gguf")


@pytest.mark.parametrize(
    "options",
    [{}, {"omitted": "output.weight"}, {"added": ["rope_freqs.weight"]}, {"scaling": "NONE"}],
)
def test_a_sound_gguf_file_loads(tmp_path, options):
    write_gguf(tmp_path / "m.gguf", IDS, **options)
    loaded = teacher(tmp_path, gguf_file="m.gguf")
    embeddings = tiny_llama(IDS).model.embed_tokens.weight
    torch.testing.assert_close(loaded.model.embed_tokens.weight, embeddings)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (transformers.LlamaConfig(max_position_embeddings=64), 64),
        (transformers.BloomConfig(), None),
        (transformers.XLNetConfig(), None),
    ],
)
def test_largest_input_of_a_configuration(settings, expected):
    assert largest_input(settings) == expected
