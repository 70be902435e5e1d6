"""The pages of PyPI and crates.io: every link leads somewhere."""

import re
import runpy
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / ".ci" / "registry_pages.py"))
ADDRESS, REF = "https://git.example/owner/name", "v0.1.0"
MARKDOWN = """# Title
![drawn](docs/a.svg) [`a[0]`, a page](docs/a.md#part)
[this page](#title), [elsewhere](https://x.example/docs/a.md)
`[code](docs/none.md)` [mail](mailto:a@x.de) [![picture](docs/a.svg)](docs/a.md)

    [code](docs/none.md)

```
[code](docs/none.md)
```
[last](docs)"""
EXPECTED = """# Title
![drawn](A/raw/R/docs/a.svg) [`a[0]`, a page](A/blob/R/docs/a.md#part)
[this page](#title), [elsewhere](https://x.example/docs/a.md)
`[code](docs/none.md)` [mail](mailto:a@x.de) [![picture](A/raw/R/docs/a.svg)](A/blob/R/docs/a.md)

    [code](docs/none.md)

```
[code](docs/none.md)
```
[last](A/blob/R/docs)"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("a.md", "a.svg"):
        (tmp_path / "docs" / name).touch()
    return tmp_path


@pytest.fixture
def published(tmp_path):
    """A copy of what is published, with the pages made."""
    for name in ("README.md", "pyproject.toml", "rust/core/Cargo.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    text = (ROOT / "README.md").read_text("utf-8")
    for name in re.findall(r"\]\(([\w./-]+)", text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    SCRIPT["main"](tmp_path, ADDRESS, REF)
    return tmp_path


def in_the_tree(url):
    """Path and anchor of an address of ours."""
    path, _, anchor = re.sub(rf"^{ADDRESS}/(raw|blob)/{REF}/", "", url).partition("#")
    return ROOT / path, anchor


def test_links_become_absolute_and_code_stays(folder):
    expected = EXPECTED.replace("A/", f"{ADDRESS}/").replace("/R/", f"/{REF}/")
    assert SCRIPT["absolute"](MARKDOWN, ADDRESS, REF, folder) == expected
    assert SCRIPT["absolute"](expected, ADDRESS, REF, folder) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a](docs/b.md)", "docs/b.md: linked"),
        ("[a]: docs/a.md", "of the form"),
        ('<img src="docs/a.svg">', "of the form"),
        ('[a](docs/a.md "title")', "of the form"),
    ],
)
def test_what_it_cannot_map_is_refused(folder, text, message):
    with pytest.raises(SystemExit, match=message):
        SCRIPT["absolute"](text, ADDRESS, REF, folder)


def test_every_link_of_the_readme_leads_into_the_tree(published):
    text = (published / "README.md").read_text("utf-8")
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]*)\)", prose)
    assert len(links) > 15
    for picture, url in links:
        assert url.startswith("https://"), url
        if url.startswith(ADDRESS):
            path, anchor = in_the_tree(url)
            assert path.is_file(), url
            assert f"/{'raw' if picture else 'blob'}/" in url
            headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in headings}
            assert not anchor or anchor in slugs, url
    unlinked = re.compile(r"\]\([^)]*\)")
    source = (ROOT / "README.md").read_text("utf-8")
    named = source.replace(SCRIPT["PLACEHOLDER"], ADDRESS)
    assert unlinked.sub("", text) == unlinked.sub("", named)


def test_the_placeholder_of_the_address_stands_once_and_is_filled(published):
    placeholder = SCRIPT["PLACEHOLDER"]
    assert (ROOT / "README.md").read_text("utf-8").count(placeholder) == 1
    text = (published / "README.md").read_text("utf-8")
    assert placeholder not in text
    assert f"git clone {ADDRESS}`" in text


def test_both_registries_get_addresses(published):
    tomllib = pytest.importorskip("tomllib", reason="tomllib came with Python 3.11")
    read = [tomllib.loads((src / "pyproject.toml").read_text("utf-8")) for src in (published, ROOT)]
    urls, paper = (table["project"].pop("urls") for table in read)
    assert read[0] == read[1]
    names = {"Homepage", "Documentation", "Repository", "Changelog", "Issues", "Paper"}
    assert (set(urls), {"Paper": urls["Paper"]}) == (names, paper)
    assert all(in_the_tree(urls[name])[0].is_file() for name in ("Documentation", "Changelog"))
    crate = tomllib.loads((published / "rust/core/Cargo.toml").read_text("utf-8"))["package"]
    assert crate["repository"] == ADDRESS
    readme = (ROOT / "rust/core" / crate["readme"]).read_text("utf-8")
    assert all(link.startswith("https://") for link in re.findall(r"\]\(([^)]*)\)", readme))


def test_a_second_time_and_an_address_without_a_repository_are_refused(published):
    with pytest.raises(SystemExit, match="already"):
        SCRIPT["main"](published, ADDRESS, REF)
    with pytest.raises(SystemExit, match="HOST/OWNER/NAME"):
        SCRIPT["main"](published, "https://git.example/", REF)
