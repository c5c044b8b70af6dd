"""YAML that people write, read with the plain types only and without surprises.

What PyYAML would pass over or break on is refused in words, with its place: a key that is there twice (the API server
refuses it too), values that are not what they look like, nesting and repetition (aliases) without end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import yaml

MAX_DEPTH: Final = 64
"""Of objects and lists inside each other: no resource comes near it."""
MAX_VALUES: Final = 200_000
"""In one document, what an alias stands for counted each time."""

_UNMADE: Final = (ValueError, TypeError, AttributeError, LookupError, OverflowError)
"""What PyYAML raises for ``2001-99-99``, ``!!int x``, a number of 5,000 digits."""


class YamlError(ValueError):
    """A text that cannot be read as YAML; says where, and what is wrong."""


def load_documents(text: str) -> list[Any]:
    """The documents of a text, empty ones left out; raises `YamlError`."""
    try:
        _check_size(yaml.parse(text, yaml.SafeLoader))
        return [document for document in yaml.load_all(text, _Loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise YamlError(f"{where}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise YamlError(" ".join(str(error).split())) from None


def load_value(text: str) -> Any:
    """The one value of a text, `None` if it is empty; raises `YamlError`."""
    documents = load_documents(text)
    if len(documents) > 1:
        raise YamlError("holds more than one document")
    return documents[0] if documents else None


def _check_size(events: Iterable[yaml.Event]) -> None:
    """Raise for a text whose values would be nested too deep, in themselves, or too many. Nothing is made yet."""
    within: list[str | None] = []
    """Anchors of what is open, from the outside in."""
    counts = [0]
    """Values so far of what is open, the whole stream first."""
    named: dict[str | None, int] = {}
    for event in events:
        match event:
            case yaml.AliasEvent():
                if event.anchor in within:
                    raise _fault(f"*{event.anchor} stands inside what it names, which has no end so", event)
                counts[-1] += named.get(event.anchor, 1)
            case yaml.ScalarEvent():
                counts[-1] += 1
            case yaml.CollectionStartEvent():
                within.append(event.anchor)
                counts.append(1)
            case yaml.CollectionEndEvent():
                count = counts.pop()
                named[within.pop()] = count
                counts[-1] += count
        if len(within) > MAX_DEPTH:
            raise _fault(f"is nested deeper than {MAX_DEPTH} levels", event)
        if counts[-1] > MAX_VALUES:
            raise _fault(f"comes to more than {MAX_VALUES:,} values, with all that aliases stand for", event)


def _fault(words: str, place: yaml.Event | yaml.Node) -> yaml.MarkedYAMLError:
    mark = place.start_mark
    return yaml.MarkedYAMLError(problem=words, problem_mark=mark if isinstance(mark, yaml.Mark) else None)


class _Loader(yaml.SafeLoader):
    """Plain types only; what cannot be made, and keys that are there twice, are told with their place."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except _UNMADE as error:
            text = str(getattr(node, "value", ""))[:40]
            raise _fault(f"{text} cannot be read ({error}); put it in quotes if it is a text", node) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                name = (key.tag, key.value)
                if name in seen:
                    raise _fault(f"{key.value} is there twice in one object: leave one out", key)
                seen.add(name)
        return super().construct_mapping(node, deep=deep)
