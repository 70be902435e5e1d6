"""Claims on the folder of a store."""

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("filelock")

from vocagno.data.store.claim import Claim
from vocagno.data.store.shards import StoreError
from vocagno.system import files


@pytest.mark.parametrize("links", [True, False])
def test_of_two_claims_at_the_same_moment_one_is_refused(tmp_path, monkeypatch, links):
    """The second process has seen no claim when the first one makes its own."""
    ours, theirs = (Claim("scores", "text", 2, {"teacher": name}) for name in "AB")
    monkeypatch.setattr("vocagno.data.store.claim.write_new_json", slowly(theirs, tmp_path))
    if links:
        with pytest.raises(StoreError, match=r"another teacher \(B, now A\) are being made here"):
            ours.save(tmp_path)
        return
    monkeypatch.setattr(files.os, "link", refuse_links)
    assert not ours.save(tmp_path)  # the best there is: finishing refuses the mixture
    with pytest.raises(StoreError, match=r"another teacher \(A, now B\) are being made here"):
        theirs.save(tmp_path)


def slowly(other, folder):
    """Writes a claim when another process has made its own."""
    write = files.write_new_json

    def wait(path, fields):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("vocagno.data.store.claim.write_new_json", write)
            other.save(folder)
        write(path, fields)

    return wait


def refuse_links(*_):
    raise PermissionError(1, "Operation not permitted")
