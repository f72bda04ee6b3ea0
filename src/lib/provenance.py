"""What made a record: machine, versions, source."""

import ast
import functools
import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from lib.paths import BOOK, NOTEBOOKS, ROOT

PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "vllm",
    "datasets",
    "accelerate",
    "tokenizers",
    "numpy",
    "pandas",
    "papermill",
)
LIBRARY = ROOT / "src" / "lib"
# What shows, executes or describes runs: an edit of these packages and modules changes no run.
NO_PART_OF_A_RUN = ("report", "build", "provenance")


def describe(stage: str | None = None) -> dict:
    """{device, versions, commit, stage, source_sha256} of this process. A package that is not installed is null."""
    return {
        "device": device(),
        "versions": versions(),
        "commit": commit(),
        "stage": stage,
        "source_sha256": source_sha256(stage),
    }


def versions() -> dict:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


@functools.cache
def device() -> dict:
    """{kind: "cuda" | "cpu", name, count, uuid, driver}: the accelerator if torch sees one, else the processor.

    `count` is the number of GPUs that this process can see; name and uuid are those of the first, which torch uses.
    """
    try:
        import torch

        if torch.cuda.is_available():
            uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
            return {
                "kind": "cuda",
                "name": torch.cuda.get_device_name(0),
                "count": torch.cuda.device_count(),
                "uuid": None if uuid is None else f"GPU-{uuid}",  # as nvidia-smi writes it
                "driver": _driver(),
            }
    except ImportError:
        pass
    return {"kind": "cpu", "name": processor(), "count": 1, "cores": os.cpu_count(), "uuid": None, "driver": None}


def _driver() -> str | None:
    """Version of the NVIDIA driver (one for all GPUs of a machine), None where nvidia-smi does not say it."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def processor() -> str:
    """Model name of the processor, as /proc/cpuinfo gives it."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        return names[0] if names else platform.machine()
    except OSError:
        return platform.machine()


@functools.cache
def commit() -> str | None:
    """Commit of the source. Where there is no git (a copied tree) the environment variable SOURCE_COMMIT says it.

    A working tree with uncommitted changes is marked `-dirty`; null when neither is known.
    """
    if os.environ.get("SOURCE_COMMIT"):
        return os.environ["SOURCE_COMMIT"]
    try:
        run = functools.partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=True)
        head = run(["git", "rev-parse", "HEAD"]).stdout.strip()
        dirty = run(["git", "status", "--porcelain", "--", "src", "notebooks"]).stdout.strip()
        return head + ("-dirty" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def predictions_sha256() -> str | None:
    """sha256 of book/predictions.yaml as it is now; None where there is none."""
    path = BOOK / "predictions.yaml"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def modules(source: Path, without: tuple[str, ...] = ()) -> list[Path]:
    """The modules of src/lib that a Python file imports, directly or through each other, sorted.

    Imports inside functions count. Packages and modules named in `without` are left out, with what only they import.
    """
    found, queue = set(), [source]
    while queue:
        for node in ast.walk(ast.parse(queue.pop().read_text(encoding="utf8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                library, *parts = name.split(".")
                if library != "lib" or (parts and parts[0] in without):
                    continue
                for depth in range(1, len(parts) + 1):  # the name may end in one of a package, or of a module
                    path = LIBRARY.joinpath(*parts[:depth]).with_suffix(".py")
                    if path.exists() and path not in found:
                        found.add(path)
                        queue.append(path)
    return sorted(found)


@functools.cache
def source_sha256(stage: str | None = None) -> str:
    """sha256 over names and bytes of the code that can change the runs of a stage: its notebook and the modules that it
    imports, without NO_PART_OF_A_RUN. For None: over all notebooks and all of src/lib.

    Raises FileNotFoundError for a stage without a notebook.
    """
    if stage is None:
        paths = sorted([*LIBRARY.rglob("*.py"), *NOTEBOOKS.glob("*.py")])
    else:
        notebook = NOTEBOOKS / f"{stage}.py"
        paths = [notebook, *modules(notebook, NO_PART_OF_A_RUN)]
    total = hashlib.sha256()
    for path in paths:
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()
