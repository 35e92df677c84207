"""JSON Schema as patterns: the JSON texts that a schema allows, as a tree of characters. Recursive schemas are no regular language."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from .json_spelling import spelled
from .regex_automaton import common_text
from .regex_pattern import DIGITS, NOTHING, SCALARS, Chain, Chars, Choice, Repeat, Tree, one_of, parse_pattern, text

IGNORED = {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples"}
TYPES: dict[str, tuple[str, ...]] = {                                           # the keywords that each type has of its own
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "string": ("pattern", "minLength", "maxLength"),
    "number": (),
    "integer": (),
    "boolean": (),
    "null": (),
}

_DIGITS, _ZERO = Chars(DIGITS), text("0")
_WHOLE = Chain((Repeat(text("-"), 0, 1), Choice((_ZERO, Chain((Chars(((49, 57),)), Repeat(_DIGITS, 0, None)))))))
_FRACTION = Repeat(Chain((text("."), Repeat(_DIGITS, 1, None))), 0, 1)
_EXPONENT = Repeat(Chain((one_of("eE"), Repeat(one_of("+-"), 0, 1), Repeat(_DIGITS, 1, None))), 0, 1)
INTEGER, NUMBER = _WHOLE, Chain((_WHOLE, _FRACTION, _EXPONENT))
WHITESPACE: dict[str, Tree] = {"none": NOTHING, "any": Repeat(one_of(" \t\n\r"), 0, None)}


def schema_tree(schema: Any, *, whitespace: str = "none") -> Tree:
    """The pattern of all JSON texts that a schema allows, in these forms.

    object    its properties in the order declared, those not required may be missing; additionalProperties must be false
    array     items, minItems, maxItems
    string    every spelling that JSON has of each character: itself, \\n and its like, \\uXXXX (two for those above U+FFFF; lone
              surrogates are no characters); minLength and maxLength count characters; pattern matches somewhere, as JSON Schema
              says, unless it has ^ and $, with the syntax of `parse_pattern`
    number    JSON's grammar; integer: without fraction and exponent, though 1.0 is one to JSON Schema
    boolean, null; type as a list of these
    enum, const      in one spelling, as the names of properties: that of Python's json.dumps with ensure_ascii=False
    anyOf; oneOf of schemas that have no text in common; $ref to "#" and a path, without recursion

    whitespace "none" or "any": between the parts of objects and arrays.

    >>> schema_tree({"const": "a"}) == Choice((text('"a"'),))
    True

    Raises ValueError naming the place and the keyword for whatever else a schema says, since a keyword that is not kept would
    allow too much; a pattern beside minLength or maxLength too.
    Source: JSON Schema 2020-12, https://json-schema.org/draft/2020-12/json-schema-validation; RFC 8259.
    """
    if whitespace not in WHITESPACE:
        raise ValueError(f"whitespace: got {whitespace!r}; want {' or '.join(map(repr, WHITESPACE))}")
    return _Reader(schema, WHITESPACE[whitespace]).tree(schema, "#", ())


class _Reader:
    """Reads one schema; `at` is the place in it, `open_refs` the references being followed."""

    def __init__(self, root: Any, space: Tree) -> None:
        self.root, self.space = root, space

    def tree(self, schema: Any, at: str, open_refs: tuple[str, ...]) -> Tree:
        if not isinstance(schema, Mapping):
            raise ValueError(f"schema: got {schema!r} at {at}; want an object, since any value is no regular language")
        said = {key: value for key, value in schema.items() if key not in IGNORED}
        for key, read in self._whole_schemas().items():
            if key in said:
                self._nothing_else(said, {key}, at)
                return read(said[key], f"{at}/{key}", open_refs)
        types = self._types(said, at)
        if "enum" in said or "const" in said:
            self._nothing_else(said, {"enum", "const", "type"}, at)
            return self._enumeration(said, types, at)
        if not types:
            raise ValueError(f"schema: got no type at {at}; want one of {', '.join(TYPES)}")
        self._nothing_else(said, {"type"}.union(*(TYPES[name] for name in types)), at)
        by_type: dict[str, Callable[[], Tree]] = {
            "object": lambda: self._object(said, at, open_refs), "array": lambda: self._array(said, at, open_refs),
            "string": lambda: self._string(said, at), "number": lambda: NUMBER, "integer": lambda: INTEGER,
            "boolean": lambda: Choice((text("true"), text("false"))), "null": lambda: text("null"),
        }  # fmt: skip
        return Choice(tuple(by_type[name]() for name in types))

    def _whole_schemas(self) -> dict[str, Callable[[Any, str, tuple[str, ...]], Tree]]:
        return {"$ref": self._reference, "anyOf": self._any_of, "oneOf": self._one_of}

    @staticmethod
    def _nothing_else(said: Mapping[str, Any], known: set[str], at: str) -> None:
        unknown = sorted(set(said) - known)
        if unknown:
            raise ValueError(f"schema: got {', '.join(unknown)} at {at}; want nothing but {', '.join(sorted(known))} there")

    @staticmethod
    def _types(said: Mapping[str, Any], at: str) -> list[str]:
        types = said.get("type", [])
        types = [types] if isinstance(types, str) else types
        if not isinstance(types, list) or any(name not in TYPES for name in types):
            raise ValueError(f"schema: got type {said['type']!r} at {at}; want some of {', '.join(TYPES)}")
        return types

    def _reference(self, ref: Any, at: str, open_refs: tuple[str, ...]) -> Tree:
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise ValueError(f"schema: got $ref {ref!r} at {at}; want a path in the schema, '#/…'")
        if ref in open_refs:
            raise ValueError(f"schema: got $ref {ref!r} inside itself at {at}; want no recursion, which is no regular language")
        target = self.root
        for step in ref.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or step not in target:
                raise ValueError(f"schema: got $ref {ref!r} at {at}; want a path that exists")
            target = target[step]
        return self.tree(target, ref, (*open_refs, ref))

    def _any_of(self, schemas: Any, at: str, open_refs: tuple[str, ...]) -> Tree:
        if not isinstance(schemas, list) or not schemas:
            raise ValueError(f"schema: got {schemas!r} at {at}; want a list of schemas")
        return Choice(tuple(self.tree(schema, f"{at}/{i}", open_refs) for i, schema in enumerate(schemas)))

    def _one_of(self, schemas: Any, at: str, open_refs: tuple[str, ...]) -> Tree:
        choice = self._any_of(schemas, at, open_refs)
        assert isinstance(choice, Choice)
        for i, one in enumerate(choice.parts):
            for j in range(i):
                shared = common_text(choice.parts[j], one)
                if shared is not None:
                    raise ValueError(f"schema: got {shared!r} in both {j} and {i} of {at}; want schemas without a common text")
        return choice

    def _enumeration(self, said: Mapping[str, Any], types: list[str], at: str) -> Tree:
        values = said.get("enum", [said.get("const")])
        if not isinstance(values, list) or not values:
            raise ValueError(f"schema: got enum {values!r} at {at}; want a list of values")
        if "const" in said:
            values = [value for value in values if _same(value, said["const"])]
        return Choice(tuple(self._value(value) for value in values if not types or any(_is_of_type(value, name) for name in types)))

    def _value(self, value: Any) -> Tree:
        if isinstance(value, Mapping):
            return self._enclosed("{", [self._property(key, self._value(member)) for key, member in value.items()], "}")
        if isinstance(value, list):
            return self._enclosed("[", [self._value(member) for member in value], "]")
        return _written(value)

    def _enclosed(self, left: str, parts: list[Tree], right: str) -> Tree:
        body = [piece for part in parts for piece in (self._comma(), part)][1:]
        return Chain((text(left), self.space, *body, *((self.space,) if body else ()), text(right)))

    def _comma(self) -> Tree:
        return Chain((self.space, text(","), self.space))

    def _property(self, name: str, value: Tree) -> Tree:
        return Chain((_written(name), self.space, text(":"), self.space, value))

    def _object(self, said: Mapping[str, Any], at: str, open_refs: tuple[str, ...]) -> Tree:
        if said.get("additionalProperties", True) is not False:
            raise ValueError(f"schema: got additionalProperties {said.get('additionalProperties', 'not given, which means true')} at {at}; "
                             "want false")  # fmt: skip
        properties, required = said.get("properties", {}), said.get("required", [])
        missing = [name for name in required if name not in properties]
        if missing:
            raise ValueError(f"schema: got required {', '.join(missing)} at {at}; want names of its properties")
        members = [(self._property(name, self.tree(schema, f"{at}/properties/{name}", open_refs)), name in required)
                   for name, schema in properties.items()]  # fmt: skip
        return Chain((text("{"), self.space, self._members(members), text("}")))

    def _members(self, members: list[tuple[Tree, bool]]) -> Tree:
        """Members in order, the optional ones there or not, commas between those that are there, space after the last."""
        ways: list[Tree] = []
        for i, (first, needed) in enumerate(members):
            later = (Repeat(Chain((self._comma(), member)), int(wanted), 1) for member, wanted in members[i + 1 :])
            ways.append(Chain((first, *later, self.space)))
            if needed:
                return Choice(tuple(ways))
        return Choice((*ways, NOTHING))

    def _array(self, said: Mapping[str, Any], at: str, open_refs: tuple[str, ...]) -> Tree:
        least, most = _bounds(said, "minItems", "maxItems", at)
        if "items" not in said and most != 0:
            raise ValueError(f"schema: got an array without items at {at}; want items, since any value is no regular language")
        if most == 0:
            return Chain((text("["), self.space, text("]"))) if least == 0 else Choice(())
        item = self.tree(said["items"], f"{at}/items", open_refs)
        more = Repeat(Chain((self._comma(), item)), max(least - 1, 0), None if most is None else most - 1)
        some: Tree = Choice(()) if most is not None and most < least else Chain((item, more, self.space))
        return Chain((text("["), self.space, Choice((some, NOTHING)) if least == 0 else some, text("]")))

    @staticmethod
    def _string(said: Mapping[str, Any], at: str) -> Tree:
        least, most = _bounds(said, "minLength", "maxLength", at)
        if "pattern" not in said:
            return Choice(()) if most is not None and most < least else _quoted(spelled(Repeat(Chars(SCALARS), least, most)))
        if "minLength" in said or "maxLength" in said:
            raise ValueError(f"schema: got a pattern and a length at {at}; want one of them, or the length in the pattern")
        return _quoted(spelled(parse_pattern(said["pattern"], whole=False)))


def _written(value: Any) -> Tree:
    """What the schema itself gives has one spelling, so that it is forced; what is free has all."""
    written = json.dumps(value, allow_nan=False, ensure_ascii=False)
    if any(0xD800 <= ord(c) <= 0xDFFF for c in written):
        raise ValueError(f"schema: got a surrogate in {value!r}; want characters")
    return text(written)


def _quoted(inside: Tree) -> Tree:
    return Chain((text('"'), inside, text('"')))


def _bounds(said: Mapping[str, Any], least: str, most: str, at: str) -> tuple[int, int | None]:
    for name in (least, most):
        value = said.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"schema: got {name} {value!r} at {at}; want a whole number, at least 0")
    return said.get(least, 0), said.get(most)


def _same(a: Any, b: Any) -> bool:
    """Equal as JSON values: 1 is 1.0, and neither is true."""
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return bool(a == b)


def _is_of_type(value: Any, name: str) -> bool:
    if isinstance(value, bool) or value is None:
        return name == ("null" if value is None else "boolean")
    if isinstance(value, int | float):
        return name == "number" or (name == "integer" and value == int(value))
    return name == ("string" if isinstance(value, str) else "array" if isinstance(value, list) else "object")

