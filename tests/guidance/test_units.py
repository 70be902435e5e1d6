"""Units, thresholds and lines, against loops over single tokens."""

import math
from dataclasses import asdict, replace
from itertools import groupby

import numpy as np
import pytest
import yaml

torch = pytest.importorskip("torch")

from hypothesis import given, settings
from hypothesis import strategies as st

from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError
from vocagno.guidance import token_weights
from vocagno.guidance.loss import group_ends, thresholded_cross_entropy
from vocagno.guidance.mappings import compared_groups
from vocagno.guidance.methods import method_of
from vocagno.guidance.rules import choose, known_weights
from vocagno.guidance.selective import selective_cross_entropy
from vocagno.guidance.tensors import GuidanceTensors, StudentSide
from vocagno.guidance.units import Units
from vocagno.models.head import LanguageHead, chunks
from vocagno.models.losses import IGNORED
from vocagno.training.configuration import parse

NAN = math.nan


def group(**options):
    """A rule on groups, all of which are kept but for what the options say."""
    return GuidanceConfig(
        **{"unit": "group", "top_fraction": None, "max_threshold": -1.0} | options
    )


def expected(nll, teacher, labels, groups, lines, sizes, of_groups, config):
    """Weights of one row by the definition: loops, no tensors. Returns them and the threshold."""
    n = len(nll)
    grouped = [[k for k in range(n) if groups[k] == groups[i] >= 0] or [i] for i in range(n)]
    own = grouped if config.unit == "group" else [[i] for i in range(n)]
    heard = teacher if config.unit == "group" else of_groups
    is_heard = [labels[i] != IGNORED and math.isfinite(heard[i]) for i in range(n)]
    competes = [labels[i] != IGNORED and math.isfinite(teacher[i]) for i in range(n)]
    excess = [math.fsum(nll[k] for k in own[i]) / len(own[i]) - teacher[i] for i in range(n)]
    threshold = math.inf if config.max_threshold is None else config.max_threshold
    if config.has_no_threshold:
        threshold = -math.inf
    ranked = sorted((excess[i] for i in range(n) if competes[i]), reverse=True)
    if config.top_fraction is not None and ranked:
        quota = ranked[math.ceil(round(config.top_fraction * len(ranked), 9)) - 1]
        threshold = min(threshold, quota)
    weights = []
    for i in range(n):
        if labels[i] == IGNORED or not competes[i]:
            weights.append(float(labels[i] != IGNORED and config.unmapped == "include"))
            continue
        weight = float(excess[i] >= threshold)
        line = [k for k in range(n) if lines[k] == lines[i] >= 0]
        near = [k for k in line if is_heard[k] and k not in grouped[i]]
        if config.window_max_loss is not None and near:
            size = sum(sizes[k] for k in near)
            loss = math.fsum(heard[k] for k in near)
            weight *= (loss + 8) / (size + 8) <= config.window_max_loss
        weights.append(weight)
    return weights, threshold


def drawn(seed, rows=3, tokens=24):
    """Losses, groups and lines of a batch in which some tokens are padding or have no teacher. The
    numbers of groups jump, and say nothing but where a group ends."""
    rng = np.random.default_rng(seed)
    nll = rng.exponential(2, (rows, tokens)).astype(np.float32)
    labels = np.where(rng.random((rows, tokens)) < 0.1, IGNORED, 1)
    starts = rng.random((rows, tokens)) < 0.6
    starts[:, 0] = True
    groups = np.cumsum(starts).reshape(rows, tokens) - 1
    teacher, of_groups = rng.exponential(1, (2, groups.max() + 1)).astype(np.float32)[:, groups]
    broken = rng.random(groups.max() + 1) < 0.15
    for number in np.unique(groups):
        broken[number] |= (labels[groups == number] == IGNORED).any()
    teacher[broken[groups]] = of_groups[broken[groups]] = NAN
    groups = np.where(broken[groups], -1, rng.permutation(10**6)[groups])
    lines = np.cumsum(rng.random((rows, tokens)) < 0.2).reshape(rows, tokens)
    lines += np.arange(rows)[:, None]  # no line goes on in the next row
    sizes = rng.integers(1, 6, (rows, tokens), np.int32)
    arrays = (nll, teacher, labels, groups, lines, sizes, of_groups)
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    groups, lines, sizes, of_groups = tensors[3:]
    return *tensors[:3], Units(lines, sizes, groups, of_groups)


def tensors_of(teacher, labels, units, config):
    """What a batch has for a rule."""
    weight = None
    if config.window is not None:
        weight = known_weights(teacher, labels, units, config)
    return GuidanceTensors(teacher_loss=teacher, weight=weight, groups=units.groups_BT)


RULES = [
    {},
    {"top_fraction": 0.4},
    {"top_fraction": 0.4, "max_threshold": None},
    {"max_threshold": 0.5, "unmapped": "exclude"},
    {"window_max_loss": 0.4},
    {"window_max_loss": 0.7, "top_fraction": 0.7},
    {"window_max_loss": 0.3, "max_threshold": None},
    {"unit": "token"},
    {"unit": "token", "window_max_loss": 0.3},
    {"unit": "token", "top_fraction": 0.3, "max_threshold": 0.0},
]


@pytest.mark.parametrize("options", RULES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_weights_are_those_of_a_loop_over_tokens(options, seed):
    nll, teacher, labels, units = drawn(seed)
    config = group(**options)
    found = choose(nll, labels, tensors_of(teacher, labels, units, config), config)
    for row in range(len(nll)):
        tensors = nll, teacher, labels, *[units[i] for i in (2, 0, 1, 3)]
        given_row = [tensor[row].tolist() for tensor in tensors]
        weights, threshold = expected(*given_row, config)
        assert found.weights_BT[row].tolist() == pytest.approx(weights, abs=1e-6)
        assert found.thresholds_S[row].item() == pytest.approx(threshold, abs=1e-5)


def test_a_wider_scope_has_one_threshold():
    nll, teacher, labels, units = drawn(7)
    config = group(top_fraction=0.4, max_threshold=None, scope="micro_batch")
    found = choose(nll, labels, tensors_of(teacher, labels, units, config), config)
    as_one = choose(
        nll.view(1, -1),
        labels.view(1, -1),
        GuidanceTensors(teacher_loss=teacher.view(1, -1), groups=units.groups_BT.view(1, -1)),
        replace(config, scope="sequence"),
    )
    assert torch.equal(found.weights_BT.flatten(), as_one.weights_BT.flatten())
    assert torch.equal(found.thresholds_S, as_one.thresholds_S)


def test_single_tokens_under_the_largest_threshold_are_the_paper_s_rule_and_more():
    nll, teacher, labels, _ = drawn(3)
    losses = GuidanceTensors(teacher_loss=teacher)
    paper = choose(nll, labels, losses, GuidanceConfig(top_fraction=0.4))
    capped = choose(nll, labels, losses, GuidanceConfig(max_threshold=-0.5, top_fraction=0.4))
    free = choose(nll, labels, losses, GuidanceConfig(max_threshold=1e9, top_fraction=0.4))
    assert torch.equal(free.weights_BT, paper.weights_BT)
    assert torch.equal(free.thresholds_S, paper.thresholds_S)
    assert (capped.weights_BT >= paper.weights_BT).all()
    assert capped.weights_BT.sum() > paper.weights_BT.sum()
    assert (capped.thresholds_S == -0.5).all()


def test_the_threshold_of_the_paper_s_rule_is_its_smallest_kept_excess():
    nll = torch.tensor([[3.0, 1.0, 2.0, 5.0, 4.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    teacher = torch.tensor([[0.0, 0.0, 0.0, NAN, 0.0], [NAN] * 5])
    losses, labels = GuidanceTensors(teacher_loss=teacher), torch.ones_like(nll).long()
    found = choose(nll, labels, losses, GuidanceConfig(top_fraction=0.5))
    assert found.thresholds_S[0] == 3.0
    assert found.thresholds_S[1].isnan()


def test_losses_that_are_nan_or_infinite_are_kept():
    """So that the loss of the step is no number either."""
    nll = torch.tensor([[NAN, math.inf, 1.0]])
    config = group(unit="token", max_threshold=0.0)
    weights = token_weights(nll, torch.zeros(1, 3), torch.ones(1, 3).long(), config)
    assert weights[0, :2].tolist() == [1, 1]
    assert weights.isfinite().all()


def test_what_a_rule_needs_is_asked_for():
    nll, teacher, labels, units = drawn(0)
    losses = GuidanceTensors(teacher_loss=teacher)
    with pytest.raises(ValueError, match="needs the groups"):
        choose(nll, labels, losses, group())
    for rule in (group(window_max_loss=1.0), group(window_max_loss=1.0, max_threshold=None)):
        with pytest.raises(ValueError, match="needs the weights"):
            choose(nll, labels, replace(losses, groups=units.groups_BT), rule)
    rule = group(unit="token", window_max_loss=1.0)
    for name, words in (("groups_BT", "the groups"), ("group_loss_BT", "the losses of the groups")):
        with pytest.raises(ValueError, match=words):
            known_weights(teacher, labels, units._replace(**{name: None}), rule)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_threshold": NAN}, "not finite"),
        ({"unit": "group", "aggregation": "sum"}, "omit it"),
        ({"aggregation": "mean"}, "or give guidance.top_fraction"),
        ({"normalize": "selected"}, "give only guidance.top_fraction"),
        ({"window": "line"}, "guidance.window: needs guidance.window_max_loss"),
        ({"window": 3, "window_max_loss": 1.0}, "guidance.window: expected one of line, or null"),
        ({"scope": "step"}, "guidance.scope: expected one of sequence, micro_batch, got"),
        ({"max_threshold": 0.0, "normalize": "selected"}, "use tokens"),
        ({"method": "kld", "window_max_loss": 1.0}, "guidance.window_max_loss: is for gu"),
        ({"method": "chunk", "max_threshold": 0.0}, "is for guidance.method vocagno and rho1"),
        ({"method": "rho1", "unit": "group"}, "is for guidance.method vocagno"),
        ({"method": "rho1", "criterion": "excess_and_entropy", "max_threshold": 0.0}, "quota"),
    ],
)
def test_options_that_contradict_one_another_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        GuidanceConfig(**options)


LINES = {"unit": "group", "top_fraction": None, "window": "line", "window_max_loss": 2.0}


def test_without_a_rule_lines_that_are_noise_are_dropped():
    assert GuidanceConfig() == GuidanceConfig(**LINES)
    assert not GuidanceConfig().keeps_quota
    assert GuidanceConfig().has_no_threshold
    assert GuidanceConfig(unit="token") == GuidanceConfig(**LINES | {"unit": "token"})
    assert GuidanceConfig(window_max_loss=2.5) == GuidanceConfig(**LINES | {"window_max_loss": 2.5})


def test_a_rule_that_is_named_is_all_there_is():
    paper = GuidanceConfig(top_fraction=0.4)
    assert (paper.unit, paper.window, paper.keeps_quota) == ("token", None, True)
    threshold = GuidanceConfig(max_threshold=0.0)
    assert (threshold.unit, threshold.window, threshold.top_fraction) == ("token", None, None)
    lines = GuidanceConfig(method="rho1", window_max_loss=1.0)
    assert (lines.window, lines.top_fraction) == ("line", None)
    for method in ("rho1", "chunk"):
        assert GuidanceConfig(method=method) == GuidanceConfig(method=method, top_fraction=0.4)
    for method in ("rho1", "kld", "uld", "cpt"):
        assert GuidanceConfig(method=method).window is None


@pytest.mark.parametrize("rule", [{"max_threshold": -1}, {"top_fraction": 0.4}, {"unit": "group"}])
def test_a_window_of_lines_follows_from_its_limit(rule):
    named = GuidanceConfig(window="line", window_max_loss=1.5, **rule)
    assert GuidanceConfig(window_max_loss=1.5, **rule) == named


def test_a_rule_that_names_its_window_compares_tokens():
    assert GuidanceConfig(window="line", window_max_loss=1.5).unit == "token"


def test_an_option_that_names_a_rule_replaces_the_default_one(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("student: {model: S}\ndata: {train: c}\ntrain: {steps: 1}\noutput: o\n")
    for options in ({}, {"top_fraction": 0.4}, {"method": "rho1"}, {"max_threshold": -1.0}):
        words = [f"--guidance.{name}={value}" for name, value in options.items()]
        config = parse(["--config", str(file), "--teacher.model=T", *words])
        assert config.guidance == GuidanceConfig(**options)
        again = tmp_path / "again.yaml"
        again.write_text(yaml.safe_dump({"guidance": asdict(config.guidance)}))
        both = ["--config", str(file), "--config", str(again), "--teacher.model=T"]
        assert parse(both).guidance == config.guidance


def test_options_of_a_guided_run_may_stay_where_it_becomes_naive():
    naive = group(method="cpt", window_max_loss=2.0)
    assert method_of(naive).knows_kept
    assert not naive.has_fixed_threshold
    nll, teacher, labels, _ = drawn(0)
    weights = token_weights(nll, teacher, labels, naive)
    assert torch.equal(weights, (labels != IGNORED).float())


# One pass over the logits.

HIDDEN, VOCABULARY = 8, 40


def states(seed, shape):
    """States, a head and labels, with gradients asked for."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(*shape, HIDDEN, generator=generator, requires_grad=True)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=generator, requires_grad=True)
    return hidden, weight, torch.randint(VOCABULARY, shape, generator=generator)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_threshold": 1.0},
        {"max_threshold": 99.0, "unmapped": "exclude"},
        {"unit": "token"},
        {"unmapped": "mean"},
        {"window_max_loss": 0.9, "max_threshold": None},
        {"window_max_loss": 1.0, "unmapped": "mean"},
        {"unit": "token", "window_max_loss": 1.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [7, 1000])
def test_one_pass_gives_loss_weights_and_gradients_of_all_logits(monkeypatch, options, rows):
    """In chunks of 7 tokens, which end at groups and some of which span two rows, and in one."""
    monkeypatch.setattr("vocagno.models.head.chunk_rows", lambda *_: rows)
    _, teacher, mask, units = drawn(11)
    hidden, weight, labels = states(11, mask.shape)
    labels = labels.where(mask != IGNORED, IGNORED)
    config = group(**options)
    tensors = tensors_of(teacher + 2.5, labels, units, config)
    student = StudentSide(hidden, LanguageHead(weight), labels)
    total, metrics = thresholded_cross_entropy(student, tensors, config)
    nll, weights = metrics.nll_BT, metrics.weights_BT
    total.backward()
    found = hidden.grad.clone(), weight.grad.clone()

    hidden.grad = weight.grad = None
    losses = torch.nn.functional.cross_entropy(
        (hidden @ weight.T).flatten(0, 1), labels.flatten(), reduction="none"
    ).view(labels.shape)
    chosen = choose(losses, labels, tensors, config).weights_BT
    (chosen * losses).sum().backward()
    assert torch.allclose(nll, losses.detach(), atol=1e-5)
    assert torch.allclose(weights, chosen, atol=1e-5)
    assert (chosen > 0).sum() > 0 or options.get("max_threshold") == 99.0
    assert torch.allclose(found[0], hidden.grad, atol=1e-5)
    assert torch.allclose(found[1], weight.grad, atol=1e-4)


def test_thresholds_that_depend_on_other_tokens_take_two_passes():
    _, teacher, mask, units = drawn(5)
    hidden, weight, labels = states(5, mask.shape)
    config = group(top_fraction=0.4)
    tensors = tensors_of(teacher, labels, units, config)
    loss, metrics = selective_cross_entropy(hidden, weight, labels, tensors, config)
    loss.backward()
    losses = torch.nn.functional.cross_entropy(
        (hidden @ weight.T).flatten(0, 1), labels.flatten(), reduction="none"
    ).view(labels.shape)
    expected_grad = torch.autograd.grad((metrics.weights_BT * losses).sum(), hidden)[0]
    assert torch.allclose(hidden.grad, expected_grad, atol=1e-5)
    with pytest.raises(ValueError, match="known only after"):
        thresholded_cross_entropy(
            StudentSide(hidden, LanguageHead(weight), labels), tensors, config
        )


@pytest.mark.filterwarnings("error")
def test_a_group_that_is_longer_than_a_chunk_takes_memory_of_its_own(monkeypatch):
    """torch warns where a result does not fit into what was given for it."""
    monkeypatch.setattr("vocagno.models.head.chunk_rows", lambda *_: 4)
    hidden, weight, labels = states(2, (1, 20))
    groups = (torch.arange(20) >= 10).long()[None]
    tensors = GuidanceTensors(teacher_loss=torch.zeros(1, 20), groups=groups)
    loss, _ = selective_cross_entropy(hidden, weight, labels, tensors, group())
    expected = torch.nn.functional.cross_entropy(
        (hidden @ weight.T).flatten(0, 1), labels.flatten(), reduction="sum"
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_nothing_kept_gives_gradients_of_zero():
    hidden, weight, labels = states(1, (2, 6))
    config = group(unit="token", max_threshold=1e9)
    loss, metrics = selective_cross_entropy(hidden, weight, labels, torch.zeros(2, 6), config)
    loss.backward()
    assert loss == 0
    assert not metrics.weights_BT.any()
    assert not hidden.grad.any()
    assert not weight.grad.any()


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["group", "none", "hole"])), max_size=12)
)
@settings(max_examples=200, deadline=None)
def test_chunks_may_end_wherever_no_group_is_cut(parts):
    """A group may have tokens inside it that are in none (special tokens)."""
    numbers = []
    for number, (size, kind) in enumerate(parts):
        if kind == "none":
            numbers += [-1] * size
        else:
            inside = [-1] * (size - 1) if kind == "hole" else [number] * (size - 1)
            numbers += [number, *inside, number]
    cut = {
        place
        for place in range(1, len(numbers))
        if {n for n in numbers[:place] if n >= 0} & {n for n in numbers[place:] if n >= 0}
    }
    ends = group_ends(np.array(numbers, np.int64)).tolist()
    assert ends == [place for place in range(1, len(numbers) + 1) if place not in cut]


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=60),
    st.integers(1, 50),
    st.booleans(),
    st.sampled_from(["cpu", "cuda"]),
)
def test_chunks_cover_all_tokens_and_end_where_they_may(lengths, size, may_end_anywhere, device):
    ends = np.cumsum(lengths)
    total = int(ends[-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vocagno.models.head.chunk_rows", lambda *_: size)
        given_ends = None if may_end_anywhere else ends
        found = list(chunks(total, 1, torch.device(device), given_ends))
    assert [place.start for place in found] == [0, *(place.stop for place in found[:-1])]
    assert found[-1].stop == total
    longest = max(place.stop - place.start for place in found)
    if may_end_anywhere:
        assert longest <= size + size // 32
    else:
        assert {place.stop for place in found} <= set(ends.tolist())
        assert longest <= size + size // 32 + 2 * max(lengths)


@pytest.mark.parametrize("ends", [None, np.r_[3:2048:3, 2048]], ids=["anywhere", "threes"])
def test_no_chunk_is_for_a_few_tokens_that_are_left(ends):
    """2,048 tokens are six chunks of 341, and two tokens."""
    found = list(chunks(2048, 49_152, torch.device("cpu"), ends))
    assert len(found) == 6
    assert all(338 <= place.stop - place.start <= 345 for place in found)
    room = LanguageHead(torch.empty(49_152, 1)).room_for(2048)
    assert room.shape == (361, 49_152)


# Which groups are compared.


def compare(student, teacher, nll, predicted=None, ends=(), student_cu=None, teacher_cu=None):
    student, teacher = (np.array(s, np.int32).reshape(-1, 2) for s in (student, teacher))
    ends_row = np.isin(np.arange(len(student)), list(ends))
    return compared_groups(
        student,
        teacher,
        np.array(nll, np.float32),
        None if predicted is None else np.array(predicted, bool),
        ends_row,
        student_cu_seqlens=np.array(student_cu or [0, len(student)]),
        teacher_cu_seqlens=np.array(teacher_cu or [0, len(teacher)]),
    )


STUDENT = [(0, 2), (2, 4), (4, 9), (9, 9), (9, 12), (12, 13)]
TEACHER = [(0, 4), (4, 6), (6, 9), (9, 13)]
"""Groups: tokens 0 and 1 to 0; 2 to 1 and 2; 4 and 5 (behind a special token) to 3."""
LOSSES = [1.0, 2.0, 4.0, 8.0]


def test_a_group_has_the_sum_of_the_teacher_over_its_student_tokens():
    found = compare(STUDENT, TEACHER, LOSSES)
    assert found.groups.tolist() == [0, 0, 1, -1, 2, 2]
    assert found.mapping.tolist() == [[0, 1], [0, 1], [1, 3], [-1, -1], [3, 4], [3, 4]]
    np.testing.assert_array_equal(found.teacher_loss, [0.5, 0.5, 6.0, NAN, 4.0, 4.0])


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ({"predicted": [0, 1, 1, 1, 1, 1]}, [-1, -1, 0, -1, 1, 1]),  # the first token of a row
        ({"predicted": [0, 0, 0, 1, 1, 1]}, [-1, -1, -1, -1, 0, 0]),  # a prompt
        ({"ends": [5]}, [0, 0, 1, -1, -1, -1]),  # text may go on in the next row
        ({"ends": [3]}, [0, 0, 1, -1, 2, 2]),  # the end of a document ends the row
        ({"nll": [NAN, 2.0, 4.0, 8.0]}, [-1, -1, 0, -1, 1, 1]),  # no BOS: the first has no loss
        ({"nll": [1.0, math.inf, 4.0, 8.0]}, [0, 0, -1, -1, 1, 1]),  # a part of a group
        ({"teacher": [(0, 4), (4, 6), (6, 9), (9, 11)]}, [0, 0, 1, -1, -1, -1]),  # truncated
        ({"teacher": TEACHER[:3], "nll": LOSSES[:3]}, [0, 0, 1, -1, -1, -1]),
        ({"teacher": [], "nll": []}, [-1] * 6),
    ],
)
def test_groups_that_are_known_in_part_are_not_compared(options, groups):
    given_here = {"student": STUDENT, "teacher": TEACHER, "nll": LOSSES} | options
    found = compare(**given_here)
    assert found.groups.tolist() == groups
    assert (np.isnan(found.teacher_loss) == (np.array(groups) < 0)).all()
    assert ((found.mapping[:, 0] < 0) == (np.array(groups) < 0)).all()


def test_texts_of_a_batch_are_compared_each_with_its_own():
    twice = [*STUDENT, *STUDENT]
    found = compare(
        twice,
        [*TEACHER, *TEACHER],
        [*LOSSES, *LOSSES],
        ends=[11],
        student_cu=[0, 6, 12],
        teacher_cu=[0, 4, 8],
    )
    assert found.groups.tolist() == [0, 0, 1, -1, 2, 2, 3, 3, 4, -1, -1, -1]
    sizes = [len(list(same)) for number, same in groupby(found.groups.tolist()) if number >= 0]
    assert sizes == [2, 1, 2, 2, 1]
