"""Folders are uploaded as repositories of a hub; what fails says where the files are."""

import re

import pytest

pytest.importorskip("huggingface_hub")

from hub_server import serving, uses_hub
from vocagno.system.hub import HubError, HubRepository, HubUnreachableError


@pytest.fixture
def hub(monkeypatch):
    with serving() as server:
        uses_hub(monkeypatch, server)
        yield server


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "README.md").write_text("---\ntags: [a]\n---\n# Title\n")
    (tmp_path / "part" / "weights.bin").write_bytes(bytes(range(256)))
    return tmp_path


def refused(repository, folder):
    """The error of a push, which names the command that pushes again."""
    with pytest.raises(HubError) as caught:
        repository.push(folder)
    message = str(caught.value)
    assert f"The files are in {folder}. To push them again: hf upload" in message
    assert "\n" not in message
    return caught.value


@pytest.mark.parametrize(("kind", "private"), [("model", True), ("dataset", False)])
def test_a_folder_becomes_a_repository(hub, folder, kind, private):
    repository = HubRepository("thing", kind, private)
    address = repository.push(folder)
    assert re.fullmatch(rf"{hub.url}/tester/thing/commit/\w+", address)
    assert hub.private == {f"{kind}s/tester/thing": private}
    files = {"README.md", "part/weights.bin"}
    assert set(hub.files[f"{kind}s/tester/thing"]) == files
    assert hub.files[f"{kind}s/tester/thing"]["part/weights.bin"] == bytes(range(256))
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.*")} == files


def test_a_name_that_is_taken_by_its_owner_gets_another_commit(hub, folder):
    repository = HubRepository("me/thing", "model", True)
    assert repository.create() == repository.create() == "me/thing"
    (folder / "README.md").write_text("# New\n")
    repository.push(folder)
    assert hub.files["models/me/thing"]["README.md"] == b"# New\n"


@pytest.mark.parametrize(
    ("status", "words", "error"),
    [
        (401, "run `hf auth login`, or set HF_TOKEN", HubError),
        (403, "the token may not write there", HubError),
        (500, "status 500 was asked for", HubUnreachableError),
    ],
)
@pytest.mark.parametrize("place", ["create", "preupload", "commit"])
def test_a_status_is_explained(hub, folder, status, words, error, place):
    hub.statuses = {place: status}
    hub_error = refused(HubRepository("thing", "model", True), folder)
    assert type(hub_error) is error
    assert words in str(hub_error)


def test_a_missing_token_names_its_variable(hub, folder, monkeypatch):
    uses_hub(monkeypatch, hub, token=None)
    assert "set HF_TOKEN" in str(refused(HubRepository("thing", "model", True), folder))


@pytest.mark.parametrize("name", ["a b", "a/b/c", "--"])
def test_a_wrong_name_makes_no_repository(hub, folder, name):
    hub_error = refused(HubRepository(name, "model", True), folder)
    assert (type(hub_error), hub.private) == (HubError, {})


@pytest.mark.parametrize("place", ["create", "validate-yaml", "preupload", "commit"])
def test_a_push_that_broke_off_can_be_repeated(hub, folder, place):
    hub.dies_at = place
    hub_error = refused(HubRepository("thing", "model", True), folder)
    assert isinstance(hub_error, HubUnreachableError)
    hub.dies_at = None
    assert HubRepository("thing", "model", True).push(folder)


def test_offline_mode(hub, folder, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    from huggingface_hub.utils import close_session

    close_session()
    assert "offline" in str(refused(HubRepository("thing", "model", True), folder)).lower()
    close_session()
