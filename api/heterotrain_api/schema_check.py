"""Holds a value of JSON types against a structural schema, as the API server does, and says what is wrong in words.

Three steps, in the API server's order: `unknown_fields` (strict field validation), `normalize` (nulls and numbers),
`check`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from heterotrain_api.fields import INT_OR_STRING, LIST_MAP_KEYS, PRESERVE_UNKNOWN, WORDS

Schema = Mapping[str, Any]


class Fault(NamedTuple):
    """One thing that is wrong with a manifest."""

    field: str
    """Where: ``spec.workers[1].batch.min``; empty for the document as a whole."""
    message: str
    """What is allowed, and what to do where that is not plain."""

    def __str__(self) -> str:
        return f"{self.field or 'manifest'}: {self.message}"


_TYPE_NAMES: Final[dict[str, str]] = {
    "object": "an object (key: value)",
    "array": "a list",
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
}


def join(path: str, name: str) -> str:
    """Path of the field `name` of the object at `path`."""
    return f"{path}.{name}" if path else name


def unknown_fields(value: Any, schema: Schema, path: str) -> Iterator[Fault]:
    """Fields that the schema does not know, with the name that was perhaps meant. Wrong types are not looked at."""
    if isinstance(value, dict) and not schema.get(PRESERVE_UNKNOWN):
        known: Mapping[str, Any] = schema.get("properties", {})
        others: Schema | None = schema.get("additionalProperties")
        for name, item in value.items():
            if name in known:
                yield from unknown_fields(item, known[name], join(path, name))
            elif others is not None:
                yield from unknown_fields(item, others, join(path, str(name)))
            else:
                yield Fault(join(path, str(name)), f"unknown field{did_you_mean(str(name), known)}")
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from unknown_fields(item, schema["items"], f"{path}[{index}]")


def did_you_mean(word: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    """``: did you mean x?``, or what there is to choose from."""
    by_shape = {re.sub("[^a-z0-9]", "", name.lower()): name for name in known}
    shape = re.sub("[^a-z0-9]", "", word.lower())
    close = get_close_matches(shape, by_shape, n=1, cutoff=0.7)
    if close:
        return f": did you mean {by_shape[close[0]]}?"
    return f": must be one of {', '.join(known)}"


def normalize(value: Any, schema: Schema) -> Any:
    """`value` as the API server stores it: a field that is null is no field, 8.0 is the integer 8, keys are strings.

    Kubectl sends 8.0 of a YAML file as 8, and integer keys as strings.
    """
    if isinstance(value, dict):
        if schema.get(PRESERVE_UNKNOWN):
            return value
        known: Mapping[str, Any] = schema.get("properties", {})
        others: Schema = schema.get("additionalProperties", {})
        items = ((str(k) if type(k) is int else k, v) for k, v in value.items() if v is not None)
        return {name: normalize(item, known.get(name, others)) for name, item in items}
    if isinstance(value, list):
        return [normalize(item, schema.get("items", {})) for item in value]
    takes_integer = schema.get("type") == "integer" or INT_OR_STRING in schema
    if isinstance(value, float) and takes_integer and value.is_integer():
        return int(value)
    return value


def check(value: Any, schema: Schema, path: str) -> Iterator[Fault]:
    """Faults of a normalized value: types, ranges, lengths, patterns, enumerations, required fields, duplicates."""
    if INT_OR_STRING in schema:
        yield from _check_int_or_string(value, schema, path)
    elif not _is_type(value, schema["type"]):
        yield Fault(path, f"must be {_TYPE_NAMES[schema['type']]}, not {_describe(value)}{_type_hint(value, schema)}")
    elif isinstance(value, dict):
        yield from _check_object(value, schema, path)
    elif isinstance(value, list):
        yield from _check_list(value, schema, path)
    elif isinstance(value, str):
        yield from _check_string(value, schema, path)
    elif not isinstance(value, bool):
        yield from _check_number(value, schema, path)


def _is_type(value: Any, kind: str) -> bool:
    match kind:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case _:
            return isinstance(value, int | float) and not isinstance(value, bool)


def _describe(value: Any) -> str:
    match value:
        case None | bool():
            text = {None: "null", True: "true", False: "false"}[value]
        case int() | float():
            text = f"the number {value}"
        case str():
            text = f"the string {value[:40]!r}"
        case dict() | list():
            text = "an object" if isinstance(value, dict) else "a list"
        case _:
            text = f"a {type(value).__name__}"
    return text


def _type_hint(value: Any, schema: Schema) -> str:
    if value is False and "Off" in schema.get("enum", ()):
        return ': put it in quotes ("Off"), since YAML reads Off without them as false'
    if schema["type"] == "string" and isinstance(value, bool | int | float):
        return f': put it in quotes ("{str(value).lower() if isinstance(value, bool) else value}")'
    if schema["type"] in ("integer", "number") and isinstance(value, str) and re.fullmatch(r"-?\d+(\.\d+)?", value):
        return ": take the quotes away"
    if schema["type"] == "array" and isinstance(value, str):
        return f": write [{value}]" if value and " " not in value else ": write one entry per word"
    return ""


def _check_object(value: dict[Any, Any], schema: Schema, path: str) -> Iterator[Fault]:
    yield from _check_size(len(value), schema, path, "Properties", "entries")
    if schema.get(PRESERVE_UNKNOWN):
        return
    for name in schema.get("required", ()):
        if name not in value:
            yield Fault(join(path, name), f"is required{_purpose(schema['properties'][name])}")
    known: Mapping[str, Any] = schema.get("properties", {})
    others: Schema = schema.get("additionalProperties", {})
    for name, item in value.items():
        if not isinstance(name, str):
            yield Fault(path, f"must have strings as keys: put {name} in quotes")
        elif name in known or others:
            yield from check(item, known.get(name, others), join(path, name))


def _purpose(schema: Schema) -> str:
    """First sentence of the description, as a reminder of what to give."""
    sentence = re.split(r"(?<=[a-z)])[.:;]", schema.get("description", ""), maxsplit=1)[0]
    return f": {sentence[:1].lower()}{sentence[1:]}" if sentence else ""


def _check_list(value: list[Any], schema: Schema, path: str) -> Iterator[Fault]:
    yield from _check_size(len(value), schema, path, "Items", "entries")
    for index, item in enumerate(value):
        yield from check(item, schema["items"], f"{path}[{index}]")
    keys = schema.get(LIST_MAP_KEYS, ())
    seen: dict[tuple[str, ...], int] = {}
    for index, item in enumerate(value):
        key = tuple(repr(item.get(name)) for name in keys) if keys and isinstance(item, dict) else ()
        if not key:
            continue
        if key in seen:
            where = f"{path.rpartition('.')[2]}[{seen[key]}]"
            yield Fault(f"{path}[{index}].{keys[0]}", f"must be unique in the list, but {where} has the same")
        seen.setdefault(key, index)


def _check_string(value: str, schema: Schema, path: str) -> Iterator[Fault]:
    if "enum" in schema:
        if value not in schema["enum"]:
            choice = f"must be one of {', '.join(schema['enum'])}, not {value[:40]!r}"
            close = [word for word in schema["enum"] if word.lower() == value.lower()]
            yield Fault(path, choice + (f": did you mean {close[0]}?" if close else ""))
        return
    yield from _check_size(len(value), schema, path, "Length", "characters")
    if "pattern" in schema and not matches(schema["pattern"], value):
        yield _off_pattern(value, schema, path)


def _off_pattern(value: str, schema: Schema, path: str) -> Fault:
    words = schema.get(WORDS) or f"a text that matches {schema['pattern']}"
    near = suggestion(value, schema["pattern"], schema["maxLength"])
    return Fault(path, f"must be {words}, not {value[:40]!r}{near}")


def suggestion(value: str, pattern: str, longest: float = math.inf) -> str:
    """``: for example x``, the nearest text that the pattern takes; empty if none is near."""
    for text in _tamed(value):
        if text and len(text) <= longest and matches(pattern, text):
            return f": for example {text}"
    return ""


def _tamed(value: str) -> Iterator[str]:
    """The value with ever more taken away of what names do not take: blanks at the ends, capitals, odd characters."""
    for text in (value.strip(), value.strip().lower(), value.strip().capitalize()):
        yield text
        for stand_in in ("-", "_", ""):
            name = re.sub(r"[^A-Za-z0-9]+", stand_in, text)
            yield from (name, name.strip(stand_in), name.lstrip("0123456789-_").rstrip(stand_in))


def matches(pattern: str, text: str) -> bool:
    """Whether an anchored pattern matches; ``$`` means the very end, as in Go."""
    return re.search(pattern.removesuffix("$") + r"\Z" if pattern.endswith("$") else pattern, text) is not None


def _check_number(value: float, schema: Schema, path: str) -> Iterator[Fault]:
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    if not low <= value <= high:
        yield Fault(path, f"must be between {low:.16g} and {high:.16g}, not {value}")


def _check_int_or_string(value: Any, schema: Schema, path: str) -> Iterator[Fault]:
    if isinstance(value, str):
        if len(value) > schema["maxLength"] or not matches(schema["pattern"], value):
            yield _off_pattern(value, schema, path)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from _check_number(value, schema, path)
    else:
        hint = f': put it in quotes ("{value}")' if isinstance(value, float) else ""
        yield Fault(path, f"must be an integer or a string, not {_describe(value)}{hint}")


def _check_size(size: int, schema: Schema, path: str, what: str, unit: str) -> Iterator[Fault]:
    low, high = schema.get(f"min{what}", 0), schema.get(f"max{what}", math.inf)
    if low <= size <= high:
        return
    if low == high:
        unit = unit.replace("entries", "entry") if low == 1 else unit
        allowed = f"exactly {low} {unit}"
    else:
        allowed = f"at most {high} {unit}" if not low else f"between {low} and {high} {unit}"
    yield Fault(path, f"must have {allowed}, not {size}")
