"""Test which links of a SKILL.md lead to files of the skill."""

import time

import pytest

from dovetail.skills.skill_links import find_broken_links

PATHS = ["SKILL.md", "a.md", "b/c d.md", "b/(1).md"]


@pytest.mark.parametrize(
    "text",
    [
        "[x](a.md)", "[x](./a.md)", "![x](a.md)", "[x](a.md#part)", "[x](a.md?raw)", '[x](a.md "title")',
        "[x](b/../a.md)", "[x](<b/c d.md>)", "[x](b/c%20d.md)", "[x](b/(1).md)", "[x](b)", "[x](b/)", "[x](.)",
        "[x]: a.md", "[x](#part)", "[x](https://example.com/gone.md)", "[x](mailto:a@example.com)",
        "[x](//example.com/gone)", "[x]()", "[x](", "x (gone.md)",
        "`[x](gone.md)`", "```\n[x](gone.md)\n```", "~~~ md\n[x](gone.md)\n~~~", "````\n```\n[x](gone.md)\n````",
    ],
)  # fmt: skip
def test_a_link_that_leads_somewhere(text: str) -> None:
    assert find_broken_links(text, PATHS) == []


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("[x](gone.md)", "gone.md"), ("![x](gone.md)", "gone.md"), ("[x](A.md)", "A.md"), ("[x]: gone.md", "gone.md"),
        ("[x](../a.md)", "../a.md"), ("[x](/a.md)", "/a.md"), ("[x](%2e%2e/a.md)", "%2e%2e/a.md"), ("[x](b/d)", "b/d"),
        ("```\n```\n[x](gone.md)", "gone.md"), ("[x](a.md) [y](gone.md) [z](gone.md)", "gone.md"),
        ("[x](<gone file.md>)", "gone file.md"), ("[x](..)", ".."),
    ],
)  # fmt: skip
def test_a_link_that_leads_nowhere(text: str, link: str) -> None:
    assert find_broken_links(text, PATHS) == [link]


@pytest.mark.parametrize("part", ["[x](", "](<", "](a", "[", "]:", "](((", "`", "](  ", "](a(", "```\n"])
def test_a_hostile_text_costs_linear_time(part: str) -> None:
    text = part * (1_000_000 // len(part))
    started_at = time.process_time()
    find_broken_links(text, PATHS)
    assert time.process_time() - started_at < 20
