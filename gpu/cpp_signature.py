"""The C++ parameter list of a kernel, read from its source text. Macros without arguments and template arguments are put in."""

from __future__ import annotations

import re

from .packing import OTHER_NAMES, TYPES, VECTORS, Parameter

_QUALIFIERS = re.compile(r"__restrict__|__restrict\b|\brestrict\b|\bvolatile\b|__grid_constant__|\bstruct\b|\btypename\b|\bstd::")


def parameters_of(source: str, kernel: str, title: str) -> tuple[Parameter, ...]:
    """The parameters of a kernel: a name, or a template instance such as "flash_forward<float, 64>".

    title: what to call the source in a message. Raises ValueError where the text has no such kernel or a type is not known.
    """
    text = _without_comments(source)
    wanted, given = split_instance(kernel)
    found = dict(_kernels(text))
    if wanted not in found:
        offered = ", ".join(found) or "none that can be read"
        macros = "where macros hide it, give parameters='const float* q, …'"
        raise ValueError(f"name: {title} has no kernel {wanted!r}; it has {offered} ({macros})")
    template, parameter_list = found[wanted]
    types = _template_types(template, given, kernel)
    return read_parameters(parameter_list, _macros(text) | types, kernel)


def kernels_of(source: str) -> list[str]:
    """The names of the kernels defined in a source text."""
    return [name for name, _ in _kernels(_without_comments(source))]


def template_of(source: str, kernel: str) -> str:
    """What stands between the brackets of its template header, or ""."""
    return dict(_kernels(_without_comments(source)))[kernel][0]


def split_instance(kernel: str) -> tuple[str, list[str]]:
    """Bare name and template arguments of "space::name<float, 64>".

    >>> split_instance("flash::forward<float, 64>")
    ('forward', ['float', '64'])
    """
    name, opening, rest = kernel.partition("<")
    arguments = _split(rest.rstrip().removesuffix(">")) if opening else []
    return name.strip().rpartition("::")[2], arguments


def read_parameters(parameter_list: str, replacements: dict[str, str], kernel: str) -> tuple[Parameter, ...]:
    """"const float* q, int n" as parameters; replacements are the meanings of other names in it."""
    return tuple(_parameter(text, replacements, kernel) for text in _split(parameter_list) if text != "void")


def _parameter(text: str, replacements: dict[str, str], kernel: str) -> Parameter:
    declared = _QUALIFIERS.sub(" ", _expanded(text, replacements).partition("=")[0])
    found = re.match(r"(?P<type>.*?)(?P<name>[A-Za-z_]\w*)\s*(?P<array>\[[^\]]*\])?\s*$", declared, re.DOTALL)
    if not found or not found["type"].strip():
        raise ValueError(f"{kernel}: cannot read the parameter {text!r}; want a type and a name")
    before, star, after = found["type"].partition("*")
    if "*" in after or "&" in declared:
        raise ValueError(f"{kernel}: parameter {text!r}: want a number or a pointer to numbers")
    words = before.split()
    const = "const" in words
    cpp = " ".join(word for word in words if word != "const")
    cpp = OTHER_NAMES.get(cpp, cpp)
    pointer = bool(star or found["array"])
    if cpp not in TYPES and not (pointer and (cpp in VECTORS or cpp == "void")):
        raise ValueError(f"{kernel}: parameter {text!r} has type {cpp!r}; want one of {', '.join(TYPES)}, or a pointer to one")
    return Parameter(found["name"], cpp, pointer, const and pointer)


def _kernels(text: str) -> list[tuple[str, tuple[str, str]]]:
    """(name, (template header, parameter list)) of every kernel defined in a text without comments."""
    found = []
    for start in re.finditer(r"\b__global__\b", text):
        rest = re.sub(r"^\s*(?:static\s+|inline\s+)+", "", text[start.end() :])
        while bounds := re.match(r"\s*(?:void\b)?\s*__launch_bounds__\s*\(", rest):
            rest = rest[_closing(rest, bounds.end() - 1) + 1 :]
        name = re.match(r"\s*(?:void\b)?\s*(\w+)\s*\(", rest)
        if name:
            end = _closing(rest, name.end() - 1)
            found.append((name[1], (_template_before(text[: start.start()]), rest[name.end() : end])))
    return found


def _template_before(text: str) -> str:
    header = list(re.finditer(r"\btemplate\s*<", text))
    if not header:
        return ""
    opening = header[-1].end() - 1
    closing = _closing(text, opening)
    between = re.sub(r"\b(static|inline|extern|void)\b", "", text[closing + 1 :])
    return "" if between.strip() else text[opening + 1 : closing]


def _template_types(template: str, given: list[str], kernel: str) -> dict[str, str]:
    """{name of a type parameter: the type given for it, or its default}."""
    types = {}
    for position, declared in enumerate(_split(template)):
        found = re.match(r"(?:typename|class)\s+(\w+)\s*(?:=\s*(.*))?$", declared, re.DOTALL)
        if found:
            if position >= len(given) and found[2] is None:
                raise ValueError(f"name: got {kernel!r}; want a type for {found[1]} in <…>")
            types[found[1]] = given[position] if position < len(given) else found[2]
    return types


def _macros(text: str) -> dict[str, str]:
    joined = text.replace("\\\n", " ")
    return {m[1]: m[2].strip() for m in re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(.*)$", joined, re.MULTILINE)} | {
        m[2]: m[1].strip() for m in re.finditer(r"\btypedef\s+([\w\s:]+?)\s+(\w+)\s*;", text)
    } | {m[1]: m[2].strip() for m in re.finditer(r"\busing\s+(\w+)\s*=\s*([\w\s:]+);", text)}  # fmt: skip


def _expanded(text: str, replacements: dict[str, str]) -> str:
    for _ in range(8):                                                          # a macro may name a macro
        once = re.sub(r"\b[A-Za-z_]\w*\b", lambda m: replacements.get(m[0], m[0]), text)
        if once == text:
            break
        text = once
    return text


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)


def _closing(text: str, opening: int) -> int:
    """Index of the bracket that closes the one at `opening`."""
    pairs = {"(": ")", "<": ">"}
    close, depth = pairs[text[opening]], 0
    for index in range(opening, len(text)):
        depth += (text[index] == text[opening]) - (text[index] == close)
        if depth == 0:
            return index
    return len(text)


def _split(text: str) -> list[str]:
    """Parts between commas that stand in no bracket."""
    parts, depth, part = [], 0, ""
    for character in text:
        depth += (character in "(<[{") - (character in ")>]}")
        if character == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += character
    return [*parts, part.strip()] if part.strip() else parts
