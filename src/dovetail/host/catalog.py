"""Catalog: what all servers offer, as one immutable snapshot with names that never clash.

Whoever works with a snapshot keeps it: a name in it cannot change its meaning. The order depends on names alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from dovetail.host.forms import anthropic, findings, gemini, openai, read_anthropic, read_gemini, read_openai
from dovetail.host.names import exposed, full
from dovetail.host.offers import Declaration, Manifest, Offered, home_name, tokens_of
from dovetail.host.search import Index
from dovetail.wire.codec import canonical
from dovetail.wire.shape import Struct

__all__ = ["Catalog", "Manifest", "Offered"]


class Catalog(Struct, frozen=True, kw_only=True, dict=True):
    """Everything of every server; `problems` are the things left out, with the reason."""

    tools: tuple[Offered, ...] = ()
    resources: tuple[Offered, ...] = ()
    templates: tuple[Offered, ...] = ()
    prompts: tuple[Offered, ...] = ()
    problems: tuple[str, ...] = ()

    @classmethod
    def of(cls, manifests: Mapping[str, Manifest]) -> "Catalog":
        """The catalog of some servers, by name."""
        problems: list[str] = []
        ordered = sorted(manifests.items())
        return cls(
            tools=_merged("tool", ((name, one.tools) for name, one in ordered), problems),
            resources=_merged("resource", ((name, one.resources) for name, one in ordered), problems),
            templates=_merged("resource template", ((name, one.templates) for name, one in ordered), problems),
            prompts=_merged("prompt", ((name, one.prompts) for name, one in ordered), problems),
            problems=tuple(problems),
        )

    def find(self, name: str) -> Offered | None:
        """A tool by its full or exposed name, or by its bare one if no other server has it too."""
        found = self._by_name.get(name)
        if found is not None:
            return found
        bare = self._by_bare.get(name, ())
        return bare[0] if len(bare) == 1 else None

    def find_prompt(self, name: str) -> Offered | None:
        """A prompt by its full or exposed name."""
        return next((one for one in self.prompts if name in (one.full, one.exposed)), None)

    @property
    def tokens(self) -> int:
        """What all tools together take of a conversation, roughly."""
        return sum(one.tokens for one in self.tools)

    def search(self, text: str, limit: int = 10) -> list[Offered]:
        """The tools that fit a text best, best first."""
        return [self.tools[at] for at in self._index.search(text, limit)]

    def only(self, names: Iterable[str]) -> "Catalog":
        """The same snapshot with some of its tools, by full name."""
        wanted = set(names)
        return Catalog(
            tools=tuple(one for one in self.tools if one.full in wanted),
            resources=self.resources,
            templates=self.templates,
            prompts=self.prompts,
            problems=self.problems,
        )

    def to_openai(self, *, api: str = "chat") -> list[dict[str, Any]]:
        """The tools as OpenAI's interfaces take them: `api` is "chat" or "responses"."""
        return openai(self.tools, api)

    def to_anthropic(self) -> list[dict[str, Any]]:
        """The tools as Anthropic's interface takes them."""
        return anthropic(self.tools)

    def to_gemini(self) -> list[dict[str, Any]]:
        """The tools as Gemini's interface takes them: one group of function declarations."""
        return gemini(self.tools)

    def from_openai(self, call: Any) -> tuple[str, dict[str, Any]]:
        """A tool call of OpenAI's, as an object or a dict: the full name and the arguments; ValueError if unusable."""
        return self._called(*read_openai(call))

    def from_anthropic(self, block: Any) -> tuple[str, dict[str, Any]]:
        """A `tool_use` block of Anthropic's: the full name and the arguments; ValueError if unusable."""
        return self._called(*read_anthropic(block))

    def from_gemini(self, call: Any) -> tuple[str, dict[str, Any]]:
        """A function call of Gemini's: the full name and the arguments; ValueError if unusable."""
        return self._called(*read_gemini(call))

    def findings(self, provider: str) -> list[tuple[str, str]]:
        """What a maker would refuse in the tools as they were declared, and what is therefore handed on otherwise."""
        return findings(self.tools, provider)

    def _called(self, name: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        found = self._by_name.get(name)
        if found is None:
            raise ValueError(f"there is no tool {name!r}")
        return found.full, arguments

    @cached_property
    def _by_name(self) -> dict[str, Offered]:
        # No full name is an exposed one: only full names have a dot.
        return {one.exposed: one for one in self.tools} | {one.full: one for one in self.tools}

    @cached_property
    def _by_bare(self) -> dict[str, list[Offered]]:
        found: dict[str, list[Offered]] = {}
        for one in self.tools:
            found.setdefault(one.name, []).append(one)
        return found

    @cached_property
    def _index(self) -> Index:
        return Index([one.declaration for one in self.tools], [one.server for one in self.tools])


def _merged(kind: str, given: Iterable[tuple[str, Sequence[Declaration]]], problems: list[str]) -> tuple[Offered, ...]:
    found: dict[str, Offered] = {}
    shared: set[str] = set()
    for server, declarations in given:
        for one in _unambiguous(kind, server, declarations, problems):
            if (other := found.get(one.exposed)) is not None:
                problems.append(f"{kind} {one.full!r} and {other.full!r} would both be called {one.exposed}")
                shared.add(one.exposed)
            else:
                found[one.exposed] = one
    kept = (one for name, one in found.items() if name not in shared)
    return tuple(sorted(kept, key=lambda one: (one.server, one.name)))


def _unambiguous(kind: str, server: str, declarations: Sequence[Declaration], problems: list[str]) -> Iterable[Offered]:
    """Each once. Of two that differ under one name neither is offered: nobody could say which one was meant."""
    seen: dict[str, Declaration] = {}
    twice: set[str] = set()
    for one in declarations:
        name = home_name(one)
        if name in seen and canonical(seen[name]) != canonical(one) and name not in twice:
            twice.add(name)
            problems.append(f"{server} offers two different things as {kind} {name!r}")
        seen.setdefault(name, one)
    return [_offered(server, name, one) for name, one in seen.items() if name not in twice]


def _offered(server: str, name: str, declaration: Declaration) -> Offered:
    return Offered(
        server=server,
        name=name,
        full=full(server, name),
        exposed=exposed(server, name),
        declaration=declaration,
        tokens=tokens_of(declaration),
    )
