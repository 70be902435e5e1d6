"""The causal shift, and the sum of the losses that train."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from vocagno.models import losses
from vocagno.models.losses import causal_shift, teacher_guided_loss
from vocagno.models.own_head import GivenLogits


def test_labels_are_the_next_ids():
    inputs, labels = causal_shift(np.array([[5, 6, 7]], np.int32))
    assert inputs.tolist() == [[5, 6]]
    assert labels.tolist() == [[6, 7]]


def test_a_dropped_infinite_loss_does_not_poison_the_sum():
    nll = torch.tensor([[float("inf"), 2.0]], requires_grad=True)
    loss = teacher_guided_loss(nll, torch.tensor([[0.0, 1.0]]))
    loss.backward()
    assert loss == 2.0
    assert nll.grad.tolist() == [[0.0, 1.0]]
    with pytest.raises(ValueError, match="differ"):
        teacher_guided_loss(nll, torch.ones(1, 3))


@pytest.mark.parametrize("cached", [1, 7, 64, 1 << 16])
@pytest.mark.parametrize("num_ids", [5, 64, 97, 100])
def test_losses_and_entropies_in_blocks_of_rows_and_columns(monkeypatch, cached, num_ids):
    """Against distributions in float64: blocks of a part of a row, of one row and of all; ids that
    pad the head, impossible ids, and rows without any distribution."""
    monkeypatch.setattr(losses, "_CACHED", cached)
    draw = np.random.default_rng(0)
    logits = torch.from_numpy(3 * draw.standard_normal((9, 100)))
    logits[0, 7:], logits[1, :-9], logits[2, 3] = -torch.inf, -torch.inf, 60.0
    labels = torch.from_numpy(draw.integers(0, 100, (9, 1)))
    labels[0], labels[1] = 2, 99
    probabilities = torch.softmax(logits[:, :num_ids], 1)
    expected = torch.special.entr(probabilities).sum(1)
    nll = torch.logsumexp(logits, 1) - logits.gather(1, labels)[:, 0]
    exponentials = (logits - logits.amax(1, keepdim=True)).exp()

    buffer, alone = logits.float(), logits.float()
    of_labels = losses.losses_and_entropies_(buffer, labels, num_ids)
    torch.testing.assert_close(of_labels.nll_C.double(), nll, atol=3e-6, rtol=1e-6)
    has_any = probabilities.isfinite().all(1)  # the only possible ids may pad the head
    assert has_any[2:].all()
    assert torch.equal(of_labels.entropy_C.isfinite(), has_any)
    entropy = of_labels.entropy_C[has_any].double()
    torch.testing.assert_close(entropy, expected[has_any], atol=3e-6, rtol=1e-6)
    torch.testing.assert_close(buffer.double(), exponentials, atol=1e-6, rtol=1e-5)

    nll_alone, sum_alone = losses.losses_(alone, labels)
    assert torch.equal(nll_alone, of_labels.nll_C)
    assert torch.equal(sum_alone, of_labels.sum_C1)
    assert torch.equal(buffer, alone)
    if num_ids == logits.shape[1]:
        entropy = losses.chunked_entropy(logits.float(), GivenLogits.of(logits))
        torch.testing.assert_close(entropy.double(), expected, atol=3e-6, rtol=1e-6)
    for bad in (torch.nan, torch.inf, -torch.inf):
        row = torch.full((1, 100), bad)
        assert not losses.losses_and_entropies_(row, labels[:1])[0].isfinite().any()
