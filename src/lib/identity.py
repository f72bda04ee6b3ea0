"""What makes a run that run: its identity, and whether a recorded one is the wanted one."""

import dataclasses
import hashlib
import json


def digest(value) -> str:
    """sha256 of a JSON value in canonical form (sorted keys, no spaces)."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    ).hexdigest()


class _Absent:
    """A value that an identity does not know."""

    def __repr__(self):
        return "(absent)"


ABSENT = _Absent()


def differences(wanted: dict, recorded: dict) -> list[str]:
    """What keeps a recorded identity from being the wanted one, as readable lines (empty: they are the same run).

    `parameters` and `trainer` are {"values": {...}, "defaults": {...}}. A key that one side does not set is taken at
    its default there, or, where that is unknown, at the other side's: a parameter added later orphans no record, a
    default changed later does.
    """
    lines = []
    for key in ("arm", "seed", "data", "model", "parents"):
        if wanted[key] != recorded[key]:
            lines.append(f"{key}: recorded {recorded[key]!r}, wanted {wanted[key]!r}")
    for name, (want, have) in other_settings(wanted, recorded).items():
        lines.append(f"{name}: recorded {have!r}, wanted {want!r}")
    return lines


def other_settings(left: dict, right: dict) -> dict[str, tuple]:
    """Parameters and trainer fields in which two identities differ, {name: (left, right)}; read as `differences` does.

    A value that neither side knows is ABSENT.
    """
    found = {}
    for group in ("parameters", "trainer"):
        new, old = left[group], right[group]
        for name in sorted(set(new["values"]) | set(old["values"])):
            values = tuple(
                side["values"].get(name, side["defaults"].get(name, other["defaults"].get(name, ABSENT)))
                for side, other in ((new, old), (old, new))
            )
            if values[0] != values[1]:
                found[name] = values
    return found


def config_defaults(config_class: str) -> dict:
    """Default of every field of a TRL config class that JSON can hold."""
    import trl

    found = {}
    for field in dataclasses.fields(getattr(trl, config_class)):
        if isinstance(field.default, bool | int | float | str | None):
            found[field.name] = field.default
    return found
