"""Every layout gives the same training: processes, accumulation, DDP, FSDP2, stored and live."""

import json
import re
from itertools import product
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from architectures import build
from chaos import repeats
from corpora import write_corpus
from families import TEXTS
from runs import (
    ARCHITECTURE,
    TRAIN,
    cut_back,
    final_weights,
    metrics,
    run,
    same_weights,
    train_here,
    write_config,
)
from vocagno.data.rows import RowStore
from vocagno.errors import ConfigError
from vocagno.training.configuration import parse
from vocagno.training.main import set_up_deepspeed

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "support" / "processes" / "matrix.py"
ROWS = 8
STEPS = 4


_CHUNK = {"guidance.method": "chunk", "guidance.chunks": 4}
_GROUPS = {"guidance.unit": "group", "guidance.window_max_loss": "1.5"}
METHODS = {
    "kld": {"guidance.method": "kld"},
    "uld": {"guidance.method": "uld", "guidance.pairing": "aligned"},
    "rho1": {
        "guidance.method": "rho1",
        "guidance.criterion": "excess_and_entropy",
        "guidance.normalize": "selected",
    },
    "chunk": _CHUNK,
    "random": {**_CHUNK, "guidance.selection": "random"},
    "groups": {**_GROUPS, "guidance.top_fraction": "null", "guidance.max_threshold": "0.0"},
    "quota of groups": {**_GROUPS, "guidance.top_fraction": "0.5"},
    "alm": {"guidance.method": "alm", "guidance.top_fraction": "null"},
    "distill": {"guidance.method": "distill", "guidance.top_fraction": "null"},
}
"""The paper's other methods, lines of noise with a threshold on groups (one pass) and with a quota
(two), and methods that train towards the teacher, in steps of four micro-batches."""
BERT = {
    "model_type": "bert",
    "is_decoder": True,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
"""A student whose head is its own code, with the embeddings tied to it."""
METHODS["own head"] = {"student.architecture": json.dumps(BERT)}
SHARDED = repeats([*METHODS], ["kld", "groups", "distill", "own head"])
"""Methods that train with sharded weights, too: one of each kind of loss, teacher and head."""
REPLICATED = repeats([*METHODS], [*SHARDED, "rho1", "quota of groups", "uld"])
WRAPPED = [(method, "ddp") for method in REPLICATED] + [(method, "fsdp2") for method in SHARDED]


@pytest.fixture(scope="module")
def bert_teacher(tokenizers, tmp_path_factory):
    """A folder with a tiny random BERT, as a decoder, and the byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("bert")
    size = tokenizers["byte-level"].get_vocab_size()
    teacher = build("bert", is_decoder=True, vocab_size=size, max_position_embeddings=2048)
    teacher.save_pretrained(folder)
    tokenizers["byte-level"].save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def matrix(tmp_path_factory, tokenizer_files, teacher_model, same_vocabulary_model, bert_teacher):
    """All runs, by name; one process walks through its half, then two together through theirs."""
    folder = tmp_path_factory.mktemp("matrix")
    # Rows are short of text in places, so that micro-batches differ in what they count.
    corpus = write_corpus(folder / "c.jsonl", [*TEXTS, "", "a", "", "b"] * 2)
    held_out = write_corpus(folder / "v.jsonl", TEXTS[:8])
    config = write_config(
        folder,
        corpus,
        tokenizer_files,
        teacher_model,
        data={"validation": str(held_out)},
        train={"steps": STEPS, "global_batch": ROWS, "log_every": 1, "checkpoint_every": 3},
        guidance={"normalize": "selected"},
        teacher={"batch_tokens": 64},  # processes have different numbers of passes to run
    )
    for processes in (1, 2):
        cells = []

        def add(name, wrapper, options, cells=cells):
            options = options | {"output": folder / name}
            arguments = [
                str(part) for key, value in options.items() for part in (f"--{key}", value)
            ]
            cells.append([name, wrapper == "fsdp2", ["--config", str(config), *arguments]])

        wrappers = ("ddp", "fsdp2")[:processes]
        for accumulation, wrapper, teacher in product((1, 4), wrappers, ("stored", "live")):
            name = f"{processes}-{accumulation}-{wrapper}-{teacher}"
            options = {
                "train.micro_batch": ROWS // processes // accumulation,
                "teacher.mode": teacher,
                "train.sample_every": 2,
                "teacher.shard": str(wrapper == "fsdp2" and teacher == "live").lower(),
            }
            add(name, wrapper, options)
            if (accumulation, teacher) == (1, "stored"):
                low = {"train.precision": "bf16", "train.gradient_checkpointing": "true"}
                add(f"{name}-bf16", wrapper, options | low)
        for method, wrapper in WRAPPED:
            if wrapper not in wrappers:
                continue
            options = {
                "train.micro_batch": ROWS // 4 // processes,
                "guidance.normalize": "tokens",
                "teacher.shard": str(wrapper == "fsdp2" and method != "random").lower(),
                "teacher.mode": "stored" if method == "random" else "live",
            } | METHODS[method]
            models = {"kld": same_vocabulary_model, "rho1": same_vocabulary_model}
            models["own head"] = bert_teacher
            if method in models:
                options["teacher.model"] = models[method]
            add(f"{processes}-{wrapper}-{method}", wrapper, options)
        (folder / "cells.json").write_text(json.dumps(cells))
        run(processes, SCRIPT, CELLS=str(folder / "cells.json"), RECORD=str(folder))
    return folder


@pytest.fixture(scope="module")
def start(tokenizer_files):
    """The weights before training."""
    return weights_before(ARCHITECTURE, tokenizer_files)


def weights_before(architecture, tokenizer_files):
    from tokenizers import Tokenizer

    from vocagno.config.options import StudentConfig
    from vocagno.models.loading import load_student, student_settings

    size = Tokenizer.from_file(str(tokenizer_files / "student.json")).get_vocab_size()
    tokenizer = str(tokenizer_files / "student.json")
    student = StudentConfig(architecture=architecture, tokenizer=tokenizer)
    model = load_student(student, student_settings(student, size, 32), 0)
    return dict(model.named_parameters())


def check_same(folder, name, other, start):
    log, other_log = (metrics(folder / which)[0] for which in (name, other))
    assert [entry["step"] for entry in log] == list(range(1, STEPS + 1))
    for entry, expected in zip(log, other_log, strict=True):
        assert entry["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert entry["kept_loss"] == pytest.approx(expected["kept_loss"], rel=1e-4)
        assert entry["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)
        for counted in ("tokens", "coverage", "scored", "unmapped"):
            assert entry.get(counted) == expected.get(counted)
        assert entry["kept_fraction"] == pytest.approx(expected["kept_fraction"], rel=1e-6)
        assert entry.get("threshold") == pytest.approx(expected.get("threshold"), abs=1e-4)
    (validation,), (expected,) = (metrics(folder / which)[1] for which in (name, other))
    assert validation["validation_tokens"] == expected["validation_tokens"] > 100
    assert validation["validation_loss"] == pytest.approx(expected["validation_loss"], rel=1e-5)
    weights, expected = (final_weights(folder / which) for which in (name, other))
    moved, difference = 0.0, 0.0
    for key in expected:
        moved += float((expected[key] - start[key].detach()).norm() ** 2)
        difference += float((weights[key] - expected[key]).norm() ** 2)
    assert moved > 1e-4
    assert difference**0.5 <= 0.01 * moved**0.5


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2"])
@pytest.mark.parametrize("teacher", ["stored", "live"])
def test_two_processes_train_as_one(matrix, start, accumulation, wrapper, teacher):
    name = f"2-{accumulation}-{wrapper}-{teacher}"
    check_same(matrix, name, f"1-1-ddp-{teacher}", start)
    seen = json.loads((matrix / f"{name}.json").read_text())
    assert seen["parameters"] > 10
    is_fsdp = wrapper == "fsdp2"
    assert seen["sharded"] == (seen["parameters"] if is_fsdp else 0)
    assert seen["wrapper"] == ("FSDPGuidedStudent" if is_fsdp else "DistributedDataParallel")
    # Under DDP they lie in its buckets: a few megabytes here, so in the first one or two.
    assert is_fsdp or seen["gradient_storages"] <= 2
    assert seen.get("teacher_sharded", False) == (is_fsdp and teacher == "live")


@pytest.mark.parametrize(("method", "wrapper"), WRAPPED)
def test_two_processes_train_as_one_by_every_method(
    matrix, start, tokenizer_files, method, wrapper
):
    name = f"2-{wrapper}-{method}"
    if method == "own head":
        start = weights_before(BERT, tokenizer_files)
    check_same(matrix, name, f"1-ddp-{method}", start)
    seen = json.loads((matrix / f"{name}.json").read_text())
    is_fsdp = wrapper == "fsdp2"
    assert seen["sharded"] == (seen["parameters"] if is_fsdp else 0)
    assert seen.get("teacher_sharded", False) == (is_fsdp and method != "random")
    measured = {
        "kld": ("mean_distance", "paired"),
        "uld": ("mean_distance", "paired"),
        "distill": ("mean_cross_entropy", "paired"),
        "random": (),
    }.get(method, ("mean_teacher_loss", "mean_excess_loss"))
    logs = (metrics(matrix / which)[0] for which in (name, f"1-ddp-{method}"))
    for entry, expected in zip(*logs, strict=True):
        for quantity in measured:
            assert entry[quantity] == pytest.approx(expected[quantity], rel=1e-4)


def test_the_held_out_rows_do_not_divide_evenly(matrix):
    stores = [RowStore(path) for path in (matrix / "cache" / "rows").iterdir()]
    assert min(map(len, stores)) % 2 == 1


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2"])
def test_two_processes_in_bfloat16(matrix, wrapper):
    """Losses, sums and counts keep their type, so that all that was aligned is counted."""
    name, other = f"2-1-{wrapper}-stored-bf16", "1-1-ddp-stored"
    log, other_log = (metrics(matrix / which)[0] for which in (name, other))
    assert len(log) == STEPS
    for entry, expected in zip(log, other_log, strict=True):
        assert entry["loss"] == pytest.approx(expected["loss"], rel=2e-3)
        assert entry["mean_teacher_loss"] == pytest.approx(expected["mean_teacher_loss"], rel=1e-6)
        assert entry["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.05)
        assert entry["kept_fraction"] == expected["kept_fraction"]
    weights = final_weights(matrix / name)
    assert all(weight.dtype == torch.float32 for weight in weights.values())


@pytest.mark.parametrize("teacher", ["stored", "live"])
def test_accumulation_changes_nothing(matrix, start, teacher):
    check_same(matrix, f"1-4-ddp-{teacher}", f"1-1-ddp-{teacher}", start)


def test_two_processes_go_on_to_the_same_bits(matrix):
    """FSDP2 from its shards; and DDP under dropout, with the random state of each process."""
    fsdp2, dropout = "2-1-fsdp2-live", "dropout"
    cells = json.loads((matrix / "cells.json").read_text())
    arguments = {name: cell for name, _, cell in cells}
    with_dropout = [
        *arguments["2-1-ddp-stored"],
        "--student.architecture.attention_dropout",
        "0.2",
        "--output",
        str(matrix / dropout),
    ]
    new_cells = [
        ["one", True, [*arguments[fsdp2], "--output", str(matrix / "one")], fsdp2],
        [dropout, False, with_dropout],
        ["two", False, [*with_dropout, "--output", str(matrix / "two")], dropout],
    ]
    (matrix / "more.json").write_text(json.dumps(new_cells))
    run(2, SCRIPT, CELLS=str(matrix / "more.json"), RECORD=str(matrix))
    for name, resumed in ((fsdp2, "one"), (dropout, "two")):
        assert same_weights(matrix / name, matrix / resumed)
        assert metrics(matrix / resumed)[0][-1]["loss"] == metrics(matrix / name)[0][-1]["loss"]
    assert not same_weights(matrix / "2-1-ddp-stored", matrix / "two")


def test_another_number_of_processes_goes_on_with_the_same_batches(matrix, start):
    copy = cut_back(matrix / "2-1-ddp-stored", matrix / "by-one")
    arguments = ["--train.micro_batch", ROWS, "--output", copy]
    assert train_here(matrix / "run.yaml", *arguments) == 0
    check_same(matrix, "by-one", "1-1-ddp-stored", start)


ACCELERATE = sorted((TRAIN.parent / "configs" / "accelerate").glob("*.yaml"))


@pytest.mark.parametrize("path", ACCELERATE, ids=[path.stem for path in ACCELERATE])
def test_accelerate_reads_its_configurations(path, monkeypatch):
    """Through its own parser, to the environment that its processes will have."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    kinds = {
        "cpu": "NO",
        "fsdp2": "FSDP",
        "multi_gpu": "MULTI_GPU",
        "multi_node": "MULTI_GPU",
        "single_gpu": "NO",
        "zero2": "DEEPSPEED",
        "zero3": "DEEPSPEED",
    }
    assert kinds.keys() == {path.stem for path in ACCELERATE}
    assert load_config_from_file(str(path)).distributed_type == kinds[path.stem]
    arguments = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    launch, _, _ = _validate_launch_command(arguments)
    assert launch.mixed_precision == "no"
    assert launch.num_processes == {"cpu": 1, "single_gpu": 1, "multi_node": 32}.get(path.stem, 8)
    if launch.use_fsdp:
        for name, value in prepare_multi_gpu_env(launch).items():
            monkeypatch.setenv(name, value)
        plugin = FullyShardedDataParallelPlugin()
        assert plugin.fsdp_version == 2
        assert not plugin.cpu_ram_efficient_loading
        assert str(plugin.state_dict_type) == "StateDictType.SHARDED_STATE_DICT"
    if launch.use_deepspeed:
        launch.deepspeed_fields_from_accelerate_config = ""  # as the launcher itself does
        _, environment = prepare_deepspeed_cmd_env(launch)
        assert environment["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == path.stem[-1]
        assert environment["ACCELERATE_DEEPSPEED_ZERO3_INIT"] == "false"


def test_what_deepspeed_is_told(matrix):
    """DeepSpeed itself was never run: this is what it would get."""
    config = parse(["--config", str(matrix / "run.yaml"), "--train.micro_batch", "2"])
    settings = {"gradient_clipping": "auto", "gradient_accumulation_steps": 1}
    set_up_deepspeed(settings, config, 2)
    assert settings == {
        "gradient_clipping": 1.0,
        "gradient_accumulation_steps": 2,
        "train_micro_batch_size_per_gpu": 2,
    }
    for bad, words in (
        ({"optimizer": {}}, "DeepSpeed's `optimizer` is not supported"),
        ({"scheduler": {}}, "DeepSpeed's `scheduler` is not supported"),
        ({"fp16": {"enabled": True}}, "set train.precision to bf16"),
        ({"gradient_clipping": 0.3}, "`gradient_clipping` is 0.3, but this run has 1.0"),
        ({"train_micro_batch_size_per_gpu": 4}, "is 4, but this run has 2"),
    ):
        with pytest.raises(ConfigError, match=re.escape(words)):
            set_up_deepspeed(bad, config, 2)


def test_the_matrix_would_see_a_difference(matrix, start):
    """Another teacher is another training."""
    with pytest.raises(AssertionError):
        check_same(matrix, "1-1-ddp-live", "1-1-ddp-stored", start)
