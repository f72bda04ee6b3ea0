"""A variant: an arm run once more with a few other parameters: `python -m lib.variants PROFILE SEED NAME [check]`.

notebooks/variants/grpo-lean.yaml holds what the run `grpo-lean-s0` has otherwise than `grpo-s0`, whatever the profile,
or, with a line such as `profile: h200`, on that one alone. It is one ordinary execution of the arm's notebook, with the
identity, the record and the checks of every other run. It starts from the profile's own runs, so these must be there:
the setup, the shared start, and what `start_from` names.
"""

import re
import signal
import sys
from pathlib import Path

from lib.build import execute, params
from lib.paths import RUNS, VARIANTS
from lib.records import Record, shown

STAGES = {"start": "01_sft", "sft": "01_sft", "dpo": "02_dpo", "grpo": "03_grpo"}  # arm -> notebook
# What a variant cannot set: its own identity, and the split on which all that are compared were judged.
FIXED = ("seed", "variant", "judged_split")
OF_START = ("start_", "lora_", "gradient_checkpointing")  # parameters of 01_sft that begin so make the shared start


def stage(name: str, folder: Path = VARIANTS) -> str:
    """The notebook of a variant's file, such as "grpo-lean". Raises params.ParameterError for a name without an arm,

    and for one that tables and predictions have for something else: a variant of GRPO is called by its name alone.
    """
    params.variant_values(name, folder)  # an unknown name is answered with those there are
    arm, _, rest = name.partition("-")
    if arm not in STAGES or arm == "start" or not re.fullmatch(r"[a-z][a-z0-9_]*", rest):
        raise params.ParameterError(f"variant: got {name!r}, expected sft, dpo or grpo, a dash and a name such as lean")
    if rest == "rerun" or arm == "grpo" and re.match(r"(start|sft|dpo|grpo)(_|$)", rest):
        raise params.ParameterError(f"variant: got {name!r}, but {rest!r} is what a table calls something else")
    return STAGES[arm]


def parameters(profile: str, seed: int, name: str, folder: Path = VARIANTS) -> dict:
    """What the notebook of a variant is executed with.

    Raises params.ParameterError, as `params.effective`; for FIXED; for a variant that is another profile's, changes
    nothing, or begins from one that is not there; and where a variant of continued SFT changes the shared start, which
    is the profile's own run, without `own_start`.
    """
    notebook, path, varied = stage(name, folder), folder / f"{name}.yaml", params.variant_values(name, folder)
    if (own_profile := varied.get("profile", profile)) != profile:
        raise params.ParameterError(
            f"{path}: profile: got {own_profile!r}, which its values are for, and PROFILE={profile}; expected "
            f"PROFILE={own_profile}, or a variant with values for {profile}"
        )
    values = params.effective(notebook, profile, seed, variant=name, variants=folder)
    if fixed := [key for key in FIXED if key in varied]:
        raise params.ParameterError(f"{path}: got {', '.join(fixed)}, which no variant sets")
    own = {key: default for key, (_, default) in params.declared(notebook).items()} | params.profile_values(profile)
    differ = [key for key in varied if key != "profile" and varied[key] != own[key]]
    if not differ:
        told = ", ".join(f"{key} {own[key]!r}" for key in varied if key != "profile") or "nothing"
        raise params.ParameterError(f"{path}: got {told}, as profile {profile} has it; expected a value that differs")
    begun, _, other = values.get("start_from", "").partition("-")
    makes = f"{'sft' if begun == 'start' else begun}-{other}"
    there = (folder / f"{makes}.yaml").exists()
    if other and not (there and (begun != "start" or params.variant_values(makes, folder).get("own_start"))):
        needed = f"{makes} with own_start: true" if begun == "start" else makes
        raise params.ParameterError(
            f"{path}: start_from: got {values['start_from']!r}, but no variant {needed} makes it"
        )
    changed = [key for key in differ if key.startswith(OF_START)]
    if notebook == "01_sft" and changed and not values.get("own_start"):
        raise params.ParameterError(
            f"{path}: {', '.join(changed)} would change the shared start, which is the profile's own run; "
            "expected own_start: true beside it"
        )
    return values


def made_by(record: Record) -> tuple[str, str]:
    """The notebook of a recorded run, and the variant that it was executed with ("" for none).

    A start of its own is made by the variant of continued SFT that is called like it.
    """
    arm = "sft" if record.arm == "start" else record.arm
    return STAGES[record.arm], f"{arm}-{record.variant}" if record.variant else ""


def main(profile: str, seed: int, name: str) -> Path:
    """Execute a variant, show or train its run, and return the executed notebook.

    Raises params.ParameterError before anything runs, and execute.NotebookError.
    """
    values = parameters(profile, seed, name)
    out = RUNS / profile / "notebooks" / f"{name}-s{seed}.ipynb"
    execute.execute(stage(name), values, out)
    return out


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5) or not sys.argv[2].isdigit() or sys.argv[4:] not in ([], ["check"]):
        sys.exit(f"got {' '.join(sys.argv[1:])!r}, expected PROFILE SEED NAME [check], with a whole number for SEED")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the kernel is ended too
    try:
        if sys.argv[4:]:
            parameters(sys.argv[1], int(sys.argv[2]), sys.argv[3])
        else:
            print(f"Executed: {shown(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))}")
    except params.ParameterError as error:
        sys.exit(f"Wrong parameters; nothing was run.\n{error}")
    except execute.NotebookError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(f"{sys.argv[3]}: interrupted; `make variant` goes on from the last checkpoint")
