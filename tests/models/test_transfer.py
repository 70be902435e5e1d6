"""Models with another tokenizer: rows, ties and biases, folders, and what is refused."""

import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from packaging.version import Version
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from architectures import tiny_config
from families import FAMILIES, TEXTS
from gguf_files import write_gguf
from tiny_models import save_llama, scaled_models, tiny_llama
from vocagno import TokenSpans
from vocagno.errors import ConfigError
from vocagno.models.transfer import special_counterparts, transfer_

NEW, OLD = "byte-level", "llama"


@pytest.fixture(scope="module")
def sides():
    return {name: TokenSpans(FAMILIES[name]()) for name in (NEW, OLD)}


def logits_of(model, spans, text):
    with torch.no_grad():
        ids = torch.from_numpy(spans.encode([text]).ids.astype(np.int64))
        return model(input_ids=ids[None]).logits[0]


@pytest.mark.parametrize("tied", [True, False])
def test_the_same_vocabulary_gives_the_same_model(sides, tied):
    """Also without the rows that padded the old head."""
    old = sides[OLD]
    model = tiny_llama(old.vocabulary_size + 16, tie_word_embeddings=tied)
    text = TEXTS[0]
    before = logits_of(model, old, text)[:, : old.vocabulary_size]
    special = np.flatnonzero(old.is_special(np.arange(old.vocabulary_size)))
    counts = transfer_(model, old, old, dict(zip(special, special, strict=True)))
    assert torch.equal(logits_of(model, old, text), before)
    assert model.config.vocab_size == old.vocabulary_size
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert (counts.composed, counts.unspelled, counts.never_written) == (0, 0, 0)
    assert counts.copied + counts.special + counts.mean == old.vocabulary_size


@pytest.mark.parametrize("tied", [True, False])
def test_rows_are_means_of_the_rows_that_spell_them(sides, tied):
    """By hand, from the old tokenizer: a token with the same bytes keeps its row, another one has
    the mean of the rows that spell it, weighted by their bytes."""
    old, new = sides[OLD], sides[NEW]
    model = tiny_llama(old.vocabulary_size, tie_word_embeddings=tied)
    model.lm_head.bias = torch.nn.Parameter(torch.arange(old.vocabulary_size).float())
    before = model.model.embed_tokens.weight, model.lm_head.weight
    matrices = [weight.detach().clone() for weight in before]
    bias = model.lm_head.bias.detach().clone()
    end = old.token_id("</s>")
    counts = transfer_(model, old, new, {new.token_id("<|end|>") or 0: end})
    pieces, old_pieces = new.text_pieces(), old.text_pieces()
    made = model.model.embed_tokens.weight, model.lm_head.weight
    tokenizer = old.continuing_tokenizer()
    checked = 0
    for index, piece in enumerate(pieces):
        if not piece or b"\xef\xbf" in piece:
            continue
        try:
            ids = tokenizer.encode(piece.decode(), add_special_tokens=False).ids
        except UnicodeDecodeError:
            continue
        if b"".join(old_pieces[i] or b"" for i in ids) != piece:
            continue
        if piece in old_pieces and len(ids) > 1:
            ids = [old_pieces.index(piece)]
        sizes = torch.tensor([len(old_pieces[i]) for i in ids]).float()
        weights = (sizes / sizes.sum())[:, None]
        for rows, old_rows in zip(made, matrices, strict=True):
            torch.testing.assert_close(rows[index], (weights * old_rows[ids]).sum(0))
        expected = (weights[:, 0] * bias[ids]).sum().item()
        assert model.lm_head.bias[index].item() == pytest.approx(expected)
        checked += 1
    assert checked > 250
    assert counts.copied > 100
    assert counts.composed > 40


def test_models_that_scale_their_logits_keep_the_scale(sides):
    """Gemma 2, Cohere, Granite: a copied token has the logit that it had."""
    old, new = sides[OLD], sides[NEW]
    for model in scaled_models():
        model.resize_token_embeddings(old.vocabulary_size, mean_resizing=False)
        states = torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(0))
        both = old.token_id("e"), new.token_id("e")
        rows = [model.get_output_embeddings().weight[both[0]].detach().clone()]
        scale = getattr(model.config, "logit_scale", None)
        transfer_(model, old, new, {})
        rows.append(model.get_output_embeddings().weight[both[1]].detach())
        assert torch.equal(*rows)
        assert getattr(model.config, "logit_scale", None) == scale
        assert model(inputs_embeds=states).logits.shape[-1] == new.vocabulary_size


def test_a_tokenizer_with_more_ids_than_rows_is_not_the_model_s(sides):
    with pytest.raises(ConfigError, match="ids and the model 50 rows: it is not the tokenizer of"):
        transfer_(tiny_llama(50), sides[OLD], sides[NEW], {})


def write_settings(folder, **settings):
    """The settings of a tokenizer, of which nothing is taken from its tokenizer.json."""
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture
def folder(tmp_path):
    """A model with a chat template, and with an end of text and of a turn in its configurations."""
    (tmp_path / "old").mkdir()
    old = save_llama(tmp_path / "old", FAMILIES[OLD](), eos_token_id=2, unk_token_id=0)
    write_settings(old, eos_token="</s>", chat_template="{{ messages[0].content }}</s>")
    FAMILIES[NEW]().save(str(tmp_path / "new.json"))
    return tmp_path


def test_the_folder_loads_and_says_what_it_was_made_from(folder, cli, corpus):
    new = TokenSpans(folder / "new.json")
    end = next(token for token in new.vocabulary() if new.is_special([new.token_id(token)])[0])
    words = folder / "old", folder / "new.json", "--eos", end, "--text", corpus
    result = cli.json("transfer", *words, "--out", folder / "made")
    model = AutoModelForCausalLM.from_pretrained(folder / "made")
    tokenizer = AutoTokenizer.from_pretrained(folder / "made")
    assert model.config.vocab_size == result["tokens"] == new.vocabulary_size
    assert model.config.eos_token_id == tokenizer.eos_token_id == new.token_id(end)
    assert model.generation_config.eos_token_id == new.token_id(end)
    assert model.config.unk_token_id == tokenizer.unk_token_id != 0
    old = AutoModelForCausalLM.from_pretrained(folder / "old")
    row = model.model.embed_tokens.weight[new.token_id(end)]
    assert torch.equal(row, old.model.embed_tokens.weight[2])  # the end of the old texts
    assert 0.5 < result["nats_per_byte"] / result["nats_per_byte_before"] < 2
    assert "are means of the rows" in (folder / "made" / "README.md").read_text()
    rows = [result[f"{kind}_rows"] for kind in ("copied", "composed", "special", "mean")]
    assert sum(rows) == new.vocabulary_size
    # A run takes it as it is.
    run = ["--student.model", folder / "made", "--data.train", corpus, "--train.steps", 1]
    cli("train", *run, "--guidance.method", "cpt", "--data.seq_len", 16, "--output", folder / "run")


def test_what_cannot_be_transferred_is_refused_and_nothing_is_written(folder, cli, tmp_path):
    new, out = folder / "new.json", tmp_path / "out"
    (tmp_path / "there").mkdir()
    for words, message in (
        ((folder / "old", new, "--out", tmp_path / "there"), "--out: .* exists"),
        ((folder / "none", new, "--out", out), "MODEL: no folder"),
        ((folder / "old", folder / "none.json", "--out", out), "none.json"),
        ((folder / "old", new, "--eos", "<none>", "--out", out), "'<none>' is not a token of"),
        ((folder / "old", new, "--text", folder / "none", "--out", out), "none"),
    ):
        assert re.search(message, cli.error("transfer", *words)), message
        assert not out.exists()


def test_a_chat_template_goes_with_its_tokens_alone(folder, cli):
    end = TokenSpans(folder / "new.json").token(0) or ""
    words = "transfer", folder / "old", folder / "new.json", "--eos", end
    stderr = cli(*words, "--out", folder / "without").err
    assert "the chat template is omitted: the new tokenizer has no </s>" in stderr
    assert AutoTokenizer.from_pretrained(folder / "without").chat_template is None
    stderr = cli("transfer", folder / "old", folder / "old", "--out", folder / "same").err
    assert "chat template" not in stderr
    assert AutoTokenizer.from_pretrained(folder / "same").chat_template is not None


def test_ends_of_a_text_and_of_a_turn_stay_ends(tmp_path, cli, capsys):
    """Of a chat model; and ids that name other tokens of the old vocabulary do not stay."""
    sides = FAMILIES["byte-level"](), FAMILIES["byte-level-nfc"]()
    for name, tokenizer in zip(("old", "new"), sides, strict=True):
        (tmp_path / name).mkdir()
        tokenizer.add_tokens(["more"] if name == "new" else [])  # other ids
        tokenizer.add_special_tokens(["<|im_end|>"])
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
        write_settings(tmp_path / name, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    old_ids, ids = (
        [tokenizer.token_to_id(end) for end in ("<|endoftext|>", "<|im_end|>")]
        for tokenizer in sides
    )
    assert old_ids != ids
    model = tiny_llama(sides[0].get_vocab_size())
    model.generation_config.eos_token_id = old_ids
    model.generation_config.suppress_tokens = [7]
    model.save_pretrained(tmp_path / "old")
    stderr = cli("transfer", tmp_path / "old", tmp_path / "new", "--out", tmp_path / "made").err
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "made")
    assert made.generation_config.eos_token_id == ids
    assert "suppress_tokens is omitted" in stderr
    assert made.generation_config.suppress_tokens is None
    # An id that pads has a row that never learns.
    assert made.config.pad_token_id is None


def test_an_end_that_only_the_configuration_names_keeps_its_row(tmp_path, cli):
    old, new = FAMILIES[OLD](), FAMILIES[NEW]()
    for eos, name in ((2, "named"), (None, "unnamed")):
        folder = tmp_path / name
        save_llama(folder, old, eos_token_id=eos)
        write_settings(folder)  # and no name of an end
        new.save(str(tmp_path / "new.json"))
        words = "transfer", folder, tmp_path / "new.json", "--eos", "<|endoftext|>"
        stderr = cli(*words, "--out", tmp_path / f"{name}-made").err
        rows = [
            AutoModelForCausalLM.from_pretrained(place).model.embed_tokens.weight
            for place in (folder, tmp_path / f"{name}-made")
        ]
        end = rows[1][new.token_to_id("<|endoftext|>")]
        assert torch.equal(end, rows[0][2]) == (eos is not None)
        assert ("names no end of a text whose row" in stderr) == (eos is None)


def test_ids_that_a_configuration_has_by_default_are_nobodys_counterparts(sides):
    """Of a role that the old tokenizer does not name; another vocabulary may have had them."""
    old, new = (
        PreTrainedTokenizerFast(tokenizer_object=FAMILIES[OLD](), **roles)
        for roles in ({}, {"bos_token": "<s>", "eos_token": "</s>"})
    )
    ids = {token: old.get_vocab()[token] for token in ("<s>", "</s>")}
    for eos in (50256, None, ids["<s>"]):
        config = SimpleNamespace(bos_token_id=7, eos_token_id=eos)
        special = special_counterparts(old, new, config)
        assert [special[ids[token]] for token in ids] == list(ids.values())  # by their names


def test_the_end_of_a_text_shares_its_row_with_no_other_token(folder, cli):
    """The old tokenizer has one token for all roles, and puts none before a text."""
    write_settings(folder / "old", eos_token="</s>", bos_token="</s>", pad_token="</s>")
    new = FAMILIES["llama"]()
    new.save(str(folder / "new.json"))
    (folder / "made.tmp").mkdir()
    (folder / "made.tmp" / "chat_template.jinja").write_text("of a killed command")
    words = folder / "old", folder / "new.json", "--eos", "</s>", "--out", folder / "made"
    cli.json("transfer", *words)
    assert not (folder / "made" / "chat_template.jinja").exists()
    assert (folder / "made").stat().st_mode == (folder / "old").stat().st_mode
    model = AutoModelForCausalLM.from_pretrained(folder / "made")
    first = new.encode("e").ids[0]  # its BOS
    assert model.config.bos_token_id == first
    rows = model.get_output_embeddings().weight
    assert not torch.equal(rows[first], rows[new.token_to_id("</s>")])


@pytest.mark.parametrize("kind", ["gemma3n_text", "rwkv"])
def test_models_whose_weights_would_not_be_right_are_refused(sides, kind):
    """Gemma 3n has a second table of rows, of another length. RWKV divides its layers in place."""
    size = sides[OLD].vocabulary_size
    field = {"vocab_size_per_layer_input": size} if kind == "gemma3n_text" else {"rescale_every": 2}
    model = AutoModelForCausalLM.from_config(tiny_config(kind, vocab_size=size + 16, **field))
    words = {"gemma3n_text": "embed_tokens_per_layer.weight has a row for each", "rwkv": "rescale_"}
    with pytest.raises(ConfigError, match=words[kind]):
        transfer_(model, sides[OLD], sides[NEW], {})


def test_a_width_that_is_that_of_the_vocabulary_is_no_table(sides):
    old = sides[OLD]
    model = tiny_llama(old.vocabulary_size, intermediate_size=old.vocabulary_size)
    model.config.unpadded_vocab_size = old.vocabulary_size  # to which some models cut their logits
    transfer_(model, old, sides[NEW], {})
    assert model.config.unpadded_vocab_size == sides[NEW].vocabulary_size


def test_a_text_without_a_loss_is_named(folder, cli):
    (folder / "short.jsonl").write_text('{"text": "e"}\n')
    words = "transfer", folder / "old", folder / "new.json", "--out", folder / "made"
    error = cli.error(*words, "--eos", "<|endoftext|>", "--text", folder / "short.jsonl")
    assert "--text: no token of this text has a loss" in error
    assert not (folder / "made").exists()


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "chimera", None])
def test_a_gguf_file_names_how_its_text_is_cut(tmp_path, cli, pre):
    """transformers knows some names, and cuts by any other as GPT-2: SmolLM2 takes digits apart."""
    if Version(transformers.__version__) < Version("5.6"):
        pytest.skip("this transformers reads the tokenizer of any such file as SentencePiece")
    tokenizer = FAMILIES["byte-level"]()
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, tokenizer.pre_tokenizer])
    write_gguf(tmp_path / "m.gguf", tokenizer.get_vocab_size(), tokenizer=tokenizer, pre=pre)
    words = "unpack", tmp_path / "m.gguf", "--out", tmp_path / "made"
    if pre is None:
        with pytest.warns(UserWarning, match=r"is not known \(pre-tokenizer None\)"):
            cli(*words)
        return
    if pre == "chimera":
        assert "its pre-tokenizer, chimera, is not known" in cli.error(*words)
        return
    cli(*words)
    spans, text = TokenSpans(tmp_path / "made"), "So.\n\n1. First, 2024"
    assert spans.encode([text]).ids.tolist() == tokenizer.encode(text).ids


def test_a_tokenizer_beside_a_gguf_file_must_be_its_own(tmp_path, cli):
    tokenizer = FAMILIES["byte-level"]()
    write_gguf(tmp_path / "m.gguf", tokenizer.get_vocab_size(), tokenizer=tokenizer, pre="chimera")
    FAMILIES[OLD]().save(str(tmp_path / "tokenizer.json"))
    words = "unpack", tmp_path / "m.gguf", "--out", tmp_path / "made"
    # Old releases do not look at it.
    words_of_error = "none, in the tokenizer that is next to it|do not belong together"
    assert re.search(words_of_error, cli.error(*words))
    assert not (tmp_path / "made").exists()
    if Version(transformers.__version__) < Version("5.6"):
        return
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    cli(*words)
    assert TokenSpans(tmp_path / "made").vocabulary() == tokenizer.get_vocab()


def test_a_gguf_file_becomes_a_folder(tmp_path, cli, monkeypatch):
    tokenizer = FAMILIES["byte-level"]()
    size = tokenizer.get_vocab_size()
    write_gguf(tmp_path / "m.gguf", size, tokenizer=tokenizer)
    words = "unpack", tmp_path / "m.gguf", "--out", tmp_path / "made"
    # Release 5.5 reads the tokenizer of any file of this architecture as SentencePiece.
    if Version(transformers.__version__) < Version("5.6"):
        assert re.search("have another id, or none|do not belong together", cli.error(*words))
        return
    result = cli.json(*words)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "made")
    assert result["weights"] == sum(weight.numel() for weight in model.parameters())
    assert torch.equal(model.lm_head.weight, tiny_llama(size).lm_head.weight)
    ids = AutoTokenizer.from_pretrained(tmp_path / "made").encode(TEXTS[0])
    assert ids == tokenizer.encode(TEXTS[0]).ids
    assert "exists already" in cli.error("unpack", tmp_path / "m.gguf", "--out", tmp_path / "made")
    assert "no file" in cli.error("unpack", tmp_path / "x.gguf", "--out", tmp_path / "other")
    monkeypatch.setitem(sys.modules, "gguf", None)
    needed = "unpack", tmp_path / "m.gguf", "--out", tmp_path / "other"
    assert "needs gguf: pip install gguf" in cli.error(*needed)
    assert not (tmp_path / "other").exists()
