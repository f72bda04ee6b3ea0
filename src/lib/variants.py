"""A variant: an arm run once more with a few other parameters: `python -m lib.variants PROFILE SEED NAME [check]`.

notebooks/variants/grpo-lean.yaml holds what the run `grpo-lean-s0` has otherwise than `grpo-s0`, whatever the profile.
It is one ordinary execution of the arm's notebook, with the identity, the record and the checks of every other run. It
starts from the profile's own runs, so these must be there: the setup, the shared start, and what `start_from` names.
"""

import re
import sys
from pathlib import Path

from lib.build import execute, params
from lib.paths import RUNS
from lib.records import Record, shown

STAGES = {"start": "01_sft", "sft": "01_sft", "dpo": "02_dpo", "grpo": "03_grpo"}  # arm -> notebook


def stage(name: str) -> str:
    """The notebook of a variant's file, such as "grpo-lean". Raises params.ParameterError for a name without an arm."""
    params.variant_values(name)  # an unknown name is answered with those there are
    arm, _, rest = name.partition("-")
    if arm not in STAGES or arm == "start" or not re.fullmatch(r"[a-z][a-z0-9_]*", rest):
        raise params.ParameterError(f"variant: got {name!r}, expected sft, dpo or grpo, a dash and a name such as lean")
    return STAGES[arm]


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
    values = params.effective(stage(name), profile, seed, variant=name)
    out = RUNS / profile / "notebooks" / f"{name}-s{seed}.ipynb"
    execute.execute(stage(name), values, out)
    return out


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5) or not sys.argv[2].isdigit() or sys.argv[4:] not in ([], ["check"]):
        sys.exit("usage: python -m lib.variants PROFILE SEED NAME [check]   (check: its parameters only)")
    try:
        if sys.argv[4:]:
            params.effective(stage(sys.argv[3]), sys.argv[1], int(sys.argv[2]), variant=sys.argv[3])
        else:
            print(f"Executed: {shown(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))}")
    except params.ParameterError as error:
        sys.exit(f"Wrong parameters; nothing was run.\n{error}")
    except execute.NotebookError as error:
        sys.exit(str(error))
