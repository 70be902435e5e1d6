"""Forward passes of whole rows do not make the host wait, and give what they would give anyway."""

import json
import traceback

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="training needs vocagno[train]")

from torch.utils._python_dispatch import TorchDispatchMode

from architectures import build
from corpora import write_corpus
from families import TEXTS
from runs import train_here, write_config
from tiny_models import tiny_llama
from vocagno.config.guidance import GuidanceConfig
from vocagno.models.batching import isolation, keeps_apart
from vocagno.models.head import hidden_states, language_head
from vocagno.models.loading import checkpoint_activations
from vocagno.training.step import GuidedStudent, Stepper


class Waits(TorchDispatchMode):
    """Counts what would make the host wait for a device inside transformers, with its place."""

    def __init__(self):
        super().__init__()
        self.places = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero"):
            files = [frame.filename for frame in traceback.extract_stack(limit=12)]
            self.places += [file for file in files if "/transformers/" in file][-1:]
        return func(*args, **(kwargs or {}))


def waits(call):
    with torch.no_grad(), Waits() as count:
        call()
    return len(count.places)


def ids(length=24, rows=2):
    return torch.randint(0, 50, (rows, length), generator=torch.Generator().manual_seed(length))


def plain(model, rows):
    return model.base_model(input_ids=rows, use_cache=False).last_hidden_state


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt_neox", "olmo2", "mixtral"])
def test_a_pass_of_whole_rows_does_not_wait_and_gives_the_same(kind):
    model = build(kind)
    language_head(model)  # the first pass notes which masks are asked for
    for length in (1, 7, 24, 100):
        assert torch.equal(hidden_states(model, ids(length)), plain(model, ids(length)))
        assert waits(lambda n=length: hidden_states(model, ids(n))) == 0
    assert waits(lambda: plain(model, ids())) == 1  # the count sees it


@torch.no_grad()
@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
def test_a_sliding_window_keeps_its_mask(kind):
    model = build(kind, sliding_window=16)
    language_head(model)
    assert waits(lambda: hidden_states(model, ids(15))) == 0
    for length in (15, 16, 17, 40):
        assert torch.equal(hidden_states(model, ids(length)), plain(model, ids(length)))
    wide = build(kind, sliding_window=64)
    assert not torch.equal(hidden_states(wide, ids(40)), hidden_states(model, ids(40)))


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {"attn_implementation": "eager"}),
        ("doge", {}),
        ("gemma2", {}),
        ("falcon", {"alibi": True, "multi_query": False, "num_kv_heads": 4}),
    ],
)
def test_what_needs_its_mask_keeps_it(kind, options):
    model = build(kind, **options)
    for length in (24, 24, 30):
        assert torch.equal(hidden_states(model, ids(length)), plain(model, ids(length)))


@torch.no_grad()
def test_masks_of_the_caller_are_honoured():
    model = build("llama")
    language_head(model)
    rows = ids()
    padding = torch.ones_like(rows)
    padding[0, :9] = 0
    states = hidden_states(model, rows, attention_mask=padding, position_ids=None)
    output = model.base_model(input_ids=rows, attention_mask=padding, use_cache=False)
    assert torch.equal(states, output.last_hidden_state)
    assert not torch.equal(states, hidden_states(model, rows))
    piece = torch.arange(24).expand(2, -1) // 6
    apart = hidden_states(model, rows, **isolation(piece))
    alone = hidden_states(model, rows[:, 6:12])
    torch.testing.assert_close(apart[:, 6:12], alone)
    assert keeps_apart(model)


@torch.no_grad()
def test_generation_and_what_is_saved_do_not_know_of_it(tmp_path):
    model, untouched = build("llama"), build("llama")
    rows, padding = ids(), torch.ones_like(ids())
    padding[0, :9] = 0
    options = {"attention_mask": padding, "max_new_tokens": 8, "do_sample": False}
    for _ in range(2):
        hidden_states(model, rows)
        assert torch.equal(model.generate(rows, **options), untouched.generate(rows, **options))
    model.save_pretrained(tmp_path / "ours")
    untouched.save_pretrained(tmp_path / "theirs")
    saved = [(tmp_path / name / "config.json").read_text() for name in ("ours", "theirs")]
    assert saved[0] == saved[1]
    assert "vocagno" not in saved[0]


@torch.no_grad()
def test_another_attention_chosen_later_is_used():
    model = build("llama")
    hidden_states(model, ids())
    model.set_attn_implementation("eager")
    assert torch.equal(hidden_states(model, ids()), plain(model, ids()))


def test_gradients_are_the_same_with_and_without_checkpointing():
    gradients = []
    for checkpointing in (False, True):
        student = GuidedStudent(tiny_llama(50), GuidanceConfig(top_fraction=0.4)).train()
        if checkpointing:
            checkpoint_activations(student.model)
        teacher = torch.rand(2, 24, generator=torch.Generator().manual_seed(1))
        with Waits() as count:
            student(ids(), ids(), teacher, num_kept=20).loss.backward()
        assert count.places == []
        gradients.append([p.grad for p in student.parameters()])
    assert all(map(torch.equal, *gradients))


@pytest.mark.slow
def test_compiled_layers_are_compiled_once():
    model, graphs = tiny_llama(50), []
    student = GuidedStudent(model, GuidanceConfig(top_fraction=0.4)).train()

    def backend(module, _):
        graphs.append(module)
        return module.forward

    torch._dynamo.reset()
    for layer in model.base_model.layers:
        layer.compile(backend=backend)
    for _ in range(3):
        student(ids(), ids(), torch.rand(2, 24), num_kept=20).loss.backward()
    assert len(graphs) == 1


LIVE = "--teacher.mode=live"
KLD = f"{LIVE} --guidance.method=kld --teacher.model=SAME"
RHO1 = f"{LIVE} --guidance.method=rho1 --teacher.model=SAME"
METHODS = {
    "stored": "",
    "cpt": "--guidance.method=cpt",
    "isolate": "--data.isolate=true",
    "live": LIVE,
    "chunk": "--guidance.method=chunk --guidance.chunks=4",
    "uld": f"{LIVE} --guidance.method=uld",
    "kld": KLD,
    "rho1": f"{RHO1} --guidance.criterion=excess_and_entropy",
    "kld isolate": f"{KLD} --data.isolate=true",
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_no_forward_pass_of_a_step_waits(
    method, tmp_path_factory, tokenizer_files, teacher_model, same_vocabulary_model, monkeypatch
):
    folder = tmp_path_factory.mktemp("waits")
    corpus = write_corpus(folder / "c.jsonl", TEXTS)
    path = write_config(folder, corpus, tokenizer_files, teacher_model, train={"steps": 2})
    counts, step = [], Stepper.step

    def counted(self, *arguments, **options):
        with Waits() as count:
            result = step(self, *arguments, **options)
        counts.append(count.places)
        return result

    monkeypatch.setattr(Stepper, "step", counted)
    options = METHODS[method].replace("SAME", str(same_vocabulary_model)).split()
    assert train_here(path, *options) == 0
    assert counts == [[], []]
    saved = json.loads((folder / "run" / "final" / "config.json").read_text())
    assert "vocagno" not in str(saved)


def test_a_loss_of_experts_that_is_not_added_is_named():
    model = build("mixtral", num_local_experts=2, output_router_logits=True)
    with pytest.warns(UserWarning, match="load-balancing loss of the experts"):
        GuidedStudent(model, GuidanceConfig())
