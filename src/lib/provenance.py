"""What made a record: machine, versions, source."""

import functools
import hashlib
import os
import platform
import subprocess
from importlib import metadata

from lib.paths import NOTEBOOKS, ROOT

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


def describe() -> dict:
    """{device, versions, commit, source_sha256} of this process. A package that is not installed is null."""
    return {"device": device(), "versions": versions(), "commit": commit(), "source_sha256": source_sha256()}


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
    """{kind: "cuda" | "cpu", name, count, uuid, driver}: the accelerator if torch sees one, else the processor."""
    try:
        import torch

        if torch.cuda.is_available():
            query = ["nvidia-smi", "--query-gpu=uuid,driver_version", "--format=csv,noheader"]
            uuid, driver = (
                subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0].split(", ")
            )
            return {"kind": "cuda", "name": torch.cuda.get_device_name(0), "count": 1, "uuid": uuid, "driver": driver}
    except ImportError:
        pass
    return {"kind": "cpu", "name": processor(), "count": 1, "cores": os.cpu_count(), "uuid": None, "driver": None}


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
    """Commit of the source. Where there is no git (a lent GPU host) the environment variable SOURCE_COMMIT says it.

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


@functools.cache
def source_sha256() -> str:
    """sha256 over the code that can change a run: src/lib/*.py and notebooks/*.py, names and bytes."""
    total = hashlib.sha256()
    for path in sorted([*(ROOT / "src" / "lib").glob("*.py"), *NOTEBOOKS.glob("*.py")]):
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()
