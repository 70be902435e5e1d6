"""Files that readers and tools expect in a repository name what is there."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LLMS = (ROOT / "llms.txt").read_text(encoding="utf-8")
AGENTS = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def test_llms_txt_has_every_page_once():
    entries = re.findall(r"^- \[[^]]+\]\(([^)]+)\): \S", LLMS, re.MULTILINE)
    assert len(entries) == len(set(entries)) == LLMS.count("](")
    assert [name for name in entries if not (ROOT / name).is_file()] == []
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "reference").glob("*.md")]
    assert {str(page.relative_to(ROOT)) for page in pages} <= set(entries)
    assert LLMS.startswith("# vocagno\n\n> ")


def test_what_agents_md_names_exists():
    assert len(AGENTS.splitlines()) <= 60
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake ([a-z-]+)", AGENTS):
        assert f"\n{target}:" in makefile, target
    matches = re.findall(r"`([\w./-]+)`|\.venv/bin/pytest (\S+)", AGENTS)
    names = [
        name
        for groups in matches
        for name in groups
        if ("/" in name or name.endswith((".md", ".txt", ".toml"))) and name != name.upper()
    ]
    assert len(names) > 12
    for name in names:
        assert "PACKAGE" in name or (ROOT / name).exists(), name


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_an_issue_template_is_a_form(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    fields = [item["id"] for item in form["body"] if item["type"] != "markdown"]
    assert len(fields) == len(set(fields)) > 0
    assert all(item["attributes"]["label"] for item in form["body"])
