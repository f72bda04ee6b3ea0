"""Yaml that a person writes: read, with one error that names file and field, what came and what was expected."""

import yaml

from lib.paths import ROOT

NUMBER = int | float
_WORDS = {
    str: "a text", str | None: "a text or null", int: "a whole number", NUMBER: "a number",
    NUMBER | None: "a number or null", dict: "lines `name: value`",
}  # fmt: skip


class _Strict(yaml.SafeLoader):
    """A loader for which a key that comes twice is an error; plain yaml keeps the last one and says nothing."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} comes twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read(path, shape=object):
    """The content of a yaml file, of this shape (see `check`). Raises ValueError that begins with the file."""
    place = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    try:
        content = yaml.load(path.read_text(encoding="utf8"), _Strict)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{place}: cannot be read: {' '.join(str(error).split())}") from None
    check(content, shape, f"{place}:")
    return content


def check(value, shape, place: str) -> None:
    """Raise ValueError, which begins with place and the field, unless value has the shape.

    A shape is a type of _WORDS, or object for anything; a list of one shape, for one or more of it; or a dict of shapes
    by key, with `...` for every key that it does not name.
    """
    expected, parts = None, ()
    if isinstance(shape, dict) and isinstance(value, dict):
        missing = [key for key in shape if key is not ... and key not in value]
        expected = f"the key {missing[0]}" if missing else None
        parts = [(name, part, shape.get(name, shape.get(..., object))) for name, part in value.items()]
    elif isinstance(shape, list):
        expected = None if isinstance(value, list) and value else "a list of one or more"
        parts = [(number, part, shape[0]) for number, part in enumerate(value, start=1)] if not expected else ()
    elif isinstance(shape, dict) or not isinstance(value, shape) or isinstance(value, bool) and shape is not object:
        expected = _WORDS[dict if isinstance(shape, dict) else shape]
    if expected:
        raise ValueError(f"{place} got {repr(value)[:60]}, expected {expected}")
    for name, part, own in parts:
        check(part, own, f"{place} {name}:")
