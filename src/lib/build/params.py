"""Parameters of the notebooks: what each declares, what a profile sets, and one error for everything that is wrong.

A notebook declares its parameters in one cell tagged `parameters`, one a line: `seed: int = 0  # what it is (unit)`.
The sign of the default says what a number may be, the unit `(share)` or `(share of ...)` that it is at most 1. What
else must hold is a cell tagged `checks`. It raises ValueError with the names of the parameters that are wrong, and sees
those of its notebook and, as `given`, those of the first one, which the notebook itself has from the setup's record.
A profile is a flat yaml file in notebooks/profiles; a notebook gets those of its keys that it declares. A variant, one
in notebooks/variants, holds what one run of one notebook has otherwise than the profile.
"""

import ast
import difflib
import re

import yaml

from lib import written
from lib.paths import NOTEBOOKS, PROFILES, VARIANTS

EXECUTOR_KEYS = ("seeds",)  # keys of a profile that steer the Makefile, not a notebook
_KINDS = {"bool": bool, "int": int, "float": float, "str": str, "list": list}


class ParameterError(ValueError):
    """Everything that is wrong with the parameters, one problem a line."""


def stages(notebooks=NOTEBOOKS):
    """Names of the notebooks, in order: ["00_setup", "01_sft", ...]."""
    return sorted(path.stem for path in notebooks.glob("[0-9][0-9]_*.py"))


def declared(stage, notebooks=NOTEBOOKS):
    """Parameters of a notebook: {name: (type as written, default)}, read from its source without running it.

    Raises ParameterError when the notebook or its `parameters` cell is missing, when it has two, or when a line of
    the cell is not `name: type = literal`.
    """
    path = notebooks / f"{stage}.py"
    if not path.exists():
        names = ", ".join(stages(notebooks)) or "none"
        raise ParameterError(f"no notebook {path}{_nearest(stage, stages(notebooks))} (there are: {names})")
    cells = _cells(path, "parameters")
    if len(cells) != 1:
        raise ParameterError(f'{path}: {len(cells)} cells with tags=["parameters"], expected one')
    found = {}
    for node in ast.parse(cells[0]).body:
        try:
            name, kind, default = node.target.id, ast.unparse(node.annotation), ast.literal_eval(node.value)
        except (AttributeError, ValueError, TypeError):
            raise ParameterError(f"{path}:{node.lineno}: expected `name: type = literal`") from None
        if name in found:
            raise ParameterError(f"{path}:{node.lineno}: {name} is declared twice")
        if unknown := {_base(part) for part in kind.split("|")} - {*_KINDS, "None"}:
            raise ParameterError(f"{path}:{node.lineno}: type {sorted(unknown)[0]} of {name}: use {', '.join(_KINDS)}")
        if problem := _wrong_type(default, kind):
            raise ParameterError(f"{path}:{node.lineno}: default of {name}: {problem}")
        found[name] = (kind, default)
    return found


def _cells(path, tag):
    """Sources of a notebook's cells with a tag, each on its own lines of the file."""
    parts = re.split(r"^(?=# %%)", path.read_text(encoding="utf8"), flags=re.M)
    above = ["\n" * "".join(parts[:n]).count("\n") for n in range(len(parts))]
    return [above[n] + part for n, part in enumerate(parts) if re.match(rf'# %%.*tags=.*"{tag}"', part)]


def shares(stage, notebooks=NOTEBOOKS):
    """Names of a notebook's parameters whose comment states the unit `(share)` or `(share of ...)`."""
    text = (notebooks / f"{stage}.py").read_text(encoding="utf8")
    return set(re.findall(r"^(\w+): [^#\n]*#.*\(share\b", text, re.M))


def profile_values(profile, profiles=PROFILES):
    """The keys of a profile's yaml file: {name: value}. Raises ParameterError: no such file, not flat, a key twice."""
    return _flat_yaml(profiles, profile, "profile")


def variant_values(variant, variants=VARIANTS):
    """The keys of a variant's yaml file, as `profile_values`; variant: its arm and name, such as "grpo-lean"."""
    return _flat_yaml(variants, variant, "variant")


def _flat_yaml(folder, name, what):
    path, names = folder / f"{name}.yaml", sorted(p.stem for p in folder.glob("*.yaml"))
    if not path.exists():
        raise ParameterError(f"no {what} {path}{_nearest(name, names)} (there are: {', '.join(names) or 'none'})")
    try:
        values = written.read(path)
    except ValueError as error:
        raise ParameterError(str(error)) from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ParameterError(f"{path}: expected lines `name: value`")
    if wrong := [key for key in values if not isinstance(key, str)]:
        raise ParameterError(f"{path}: got the key {wrong[0]!r}, expected the name of a parameter")
    if wrong := [key for key, value in values.items() if isinstance(value, dict)]:
        raise ParameterError(f"{path}: {wrong[0]} has keys of its own; a {what} is flat")
    return values


def effective(
    stage, profile, seed=None, overrides=(), seeds=None, notebooks=NOTEBOOKS, profiles=PROFILES, variant="",
    variants=VARIANTS,
):  # fmt: skip
    """What to pass to one notebook: {name: value}. All notebooks are checked against the profile first.

    `seed` and `seeds` go to the notebooks that declare them, in place of the profile's.
    `overrides`: pairs (name, text) from the command line, read as the declared type. `variant`: a file whose keys go
    before the profile's; the notebook must declare all of them, and `variant`, which gets the name without the arm.
    Raises ParameterError that lists every problem, the nearest names, and the parameters there are.
    """
    declarations = {name: declared(name, notebooks) for name in stages(notebooks)}
    mine = declarations[stage] if stage in declarations else declared(stage, notebooks)  # the second one raises
    values = profile_values(profile, profiles)
    path = profiles / f"{profile}.yaml"
    varied = variant_values(variant, variants) if variant else {}
    files = {path: values} | ({variants / f"{variant}.yaml": varied} if variant else {})
    known = sorted(set().union(*declarations.values()))
    problems, unknown = [], False
    for place, name, value in [(place, *item) for place, given in files.items() for item in given.items()]:
        if name in EXECUTOR_KEYS and place == path:
            continue
        users = [s for s in declarations if name in declarations[s] and (place == path or s == stage)]
        if not users:
            unknown = True
            who, near = ("no notebook has a", known) if place == path else (f"notebooks/{stage}.py has no", mine)
            problems.append(f"{place}: {who} parameter {name}{_nearest(name, near)}")
        for user in users:
            kind, default = declarations[user][name]
            share = name in shares(user, notebooks)
            if problem := _wrong_type(value, kind) or _out_of_range(value, default, share):
                problems.append(f"{place}: {name} (of notebooks/{user}.py): {problem}")
    asked = {f"{path}: seeds": values.get("seeds", [0]), "seeds": [*(seeds or [0])], "seed": [seed or 0]}
    for place, own in asked.items():
        whole = isinstance(own, list) and own and all(type(s) is int and 0 <= s < 2**32 for s in own)
        if not whole or len(set(own)) < len(own):
            problems.append(f"{place}: got {own!r}, expected a list of different whole numbers such as [0, 1]")

    passed = {name: value for name, value in values.items() if name in mine}
    if variant:
        passed |= varied | {"variant": variant.partition("-")[2]}
    if "profile" in mine:
        passed["profile"] = profile
    if seed is not None and "seed" in mine:
        passed["seed"] = seed
    if seeds is not None and "seeds" in mine:
        passed["seeds"] = list(seeds)
    for name, text in overrides:
        if name not in mine:
            unknown = True
            problems.append(f"-p {name}: notebooks/{stage}.py has no parameter {name}{_nearest(name, mine)}")
            continue
        try:
            passed[name] = _read(text, mine[name][0])
        except ValueError:
            problems.append(f"-p {name}: got {text!r}, expected {mine[name][0]}")
            continue
        if problem := _out_of_range(passed[name], mine[name][1], name in shares(stage, notebooks)):
            problems.append(f"-p {name}: {problem}")
    given = {}  # of the first notebook
    for user, names in [] if problems else declarations.items():
        own = {name: default for name, (_, default) in names.items()} | values | (passed if user == stage else {})
        given = given or own
        places = {}  # name -> the file that sets it
        for place, held in (files | {"-p": dict(overrides)}).items() if user == stage else [(path, values)]:
            places |= dict.fromkeys(held.keys() & names.keys(), str(place))
        try:
            for cell in _cells(notebooks / f"{user}.py", "checks"):
                exec(cell, own | {"given": given})
        except ValueError as error:
            named = [places[word] for word in re.findall(r"\w+", str(error)) if word in places]
            place = ", ".join(dict.fromkeys(named)) or notebooks / f"{user}.py"
            problems.append(f"{place}: {error} (of notebooks/{user}.py)")
    if problems:
        if unknown:
            problems.append("the parameters there are:")
            problems += [f"  {s}: {', '.join(names)}" for s, names in declarations.items()]
        raise ParameterError("\n".join(problems))
    return passed


def _base(kind):
    return kind.strip().split("[")[0]


def _wrong_type(value, kind):
    """What is wrong with a value of a declared type, or None. A whole number passes as float, a bool never as int."""
    for part in kind.split("|"):
        base = _base(part)
        if value is None if base == "None" else type(value) is _KINDS[base]:
            return None
        if base == "float" and type(value) is int:
            return None
    problem = f"got {value!r} ({type(value).__name__}), expected {kind}"
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+[eE][+-]?\d+", value):
        problem += f"; yaml reads {value} as text: write {value.lower().replace('e', '.0e', 1)}"
    return problem


def _out_of_range(value, default, share=False):
    """What is wrong with a number, or None: where the default is above 0 it must be, where it is 0 it may be 0 too.

    A share is at most 1; so is each number of a list of shares.
    """
    numbers = value if isinstance(value, list) else [value]
    if share and not all(type(number) in (int, float) and 0 <= number <= 1 for number in numbers):
        return f"got {value!r}, expected {'shares' if isinstance(value, list) else 'a share'}, from 0 to 1"
    if type(value) not in (int, float) or type(default) not in (int, float):
        return None
    if not (value > 0 if default > 0 else value >= 0) or value == float("inf"):
        return f"got {value!r}, expected a number {'above 0' if default > 0 else 'of 0 or more'}"
    return None


def _read(text, kind):
    """A value typed on the command line, as the declared type. Raises ValueError."""
    for part in kind.split("|"):
        base = _base(part)
        if base == "None" and text.lower() in ("none", "null"):
            return None
        if base == "bool" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if base == "list":
            try:
                value = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise ValueError(text) from error
            if isinstance(value, list):
                return value
        if base in ("int", "float"):
            try:
                return _KINDS[base](text)
            except ValueError:
                pass
        if base == "str":
            return text
    raise ValueError(text)


def _nearest(name, names):
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.4)
    return f"; did you mean {near[0]}?" if near else ""
