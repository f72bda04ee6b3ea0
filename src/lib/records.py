"""Records of finished runs: written once (`lib.runs`), read everywhere through this module.

A run trains in `runs/<profile>/<run>/`; its record is `record/` inside that folder. `make record` copies finished
records to `book/results/<profile>/`, which is committed. A pin notes which of them an executed notebook used.
"""

import hashlib
import json
import os
from functools import cached_property
from pathlib import Path

import pandas as pd

from lib import clock, data, written
from lib.identity import differences, digest
from lib.paths import RESULTS, ROOT, RUNS

TABLES = ("steps", "phases", "checkpoints", "predictions", "predictions_outside", "rollouts", "splits", "likelihood")
VERDICTS = ("right", "wrong", "missing", "spurious")
SECONDS = ("billed_s", "train_s", "evaluation_s", "imports_s", "resume_s", "lost_s", "timer_call_s")
# What the fields of a run.json are, for `written.check`; an older record may lack some.
KINDS = (
    dict.fromkeys(("run", "arm", "id", "profile"), str)
    | dict.fromkeys(("identity", "parents", "parameters", "trainer", "versions", "facts", "files"), dict)
    | dict.fromkeys(SECONDS, written.NUMBER)
    | {"device": {"kind": str, "name": str}, "attempts": [dict]}
)


class _Fields(dict):
    """What a run.json holds; a field that it lacks is an error that names the file."""

    def __init__(self, fields: dict, place: str):
        super().__init__(fields)
        self.place = place

    def __missing__(self, key):
        raise ValueError(f"{self.place}: {key} is missing")


class Record:
    """A finished run, read lazily. Tables are DataFrames; one that the run lacks raises FileNotFoundError."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        path = self.folder / "run.json"
        if not path.exists():
            raise FileNotFoundError(f"no finished record in {self.folder}: run.json is missing")
        self.info = _Fields(clock.read_json(path, "run", "arm", "seed", "id", "identity"), shown(path))
        written.check(self.info, {key: kind for key, kind in KINDS.items() if key in self.info}, f"{shown(path)}:")
        for key in SECONDS:
            if not 0 <= self.info.get(key, 0) < float("inf"):  # nor NaN
                raise ValueError(
                    f"{shown(path)}: {key}: got {self.info[key]!r}, expected seconds, a number of 0 or more"
                )
        self.name, self.arm, self.seed = self.info["run"], self.info["arm"], self.info["seed"]

    def table(self, name: str) -> pd.DataFrame:
        path = self.folder / f"{name}.parquet"
        if not path.exists():
            raise FileNotFoundError(f"run {self.name} has no table {name!r}: {path} is missing")
        recorded = self.info.get("files", {}).get(path.name)
        if recorded and file_sha256(path) != recorded:
            raise ValueError(f"{shown(path)} is not the file that was recorded (sha256 in run.json): put it back")
        return read_table(path)

    def has(self, name: str) -> bool:
        return (self.folder / f"{name}.parquet").exists()

    steps = cached_property(lambda self: self.table("steps"))
    phases = cached_property(lambda self: self.table("phases"))
    checkpoints = cached_property(lambda self: self.table("checkpoints"))
    predictions = cached_property(lambda self: self.table("predictions"))
    predictions_outside = cached_property(lambda self: self.table("predictions_outside"))
    rollouts = cached_property(lambda self: self.table("rollouts"))
    splits = cached_property(lambda self: self.table("splits"))
    likelihood = cached_property(lambda self: self.table("likelihood"))

    @property
    def variant(self) -> str:
        """Name of the variant that the run is, "" for the arm's own: "lean" of the run grpo-lean-s0."""
        return self.name.removeprefix(self.arm).rpartition("-s")[0].removeprefix("-")

    @property
    def weights(self) -> Path:
        """Folder of the final weights: the record's own, or, where it keeps none, the last checkpoint in this copy.

        The shared start keeps them, because the arms begin from them. Raises FileNotFoundError where neither is there,
        or the checkpoint is of another training.
        """
        from lib.evaluate import weights_sha256

        path, last = self.folder / "weights", self.checkpoints.iloc[-1]
        if path.exists():
            return path
        live = RUNS / self.info["profile"] / self.name / f"checkpoint-{last['step']}"
        if not live.exists() or weights_sha256(live) != last["weights_sha256"]:
            raise FileNotFoundError(
                f"run {self.name} kept no weights in {path}, and {shown(live)} does not hold them: retrain it with "
                "TRAIN=always"
            )
        return live


def load(folder) -> Record:
    return Record(Path(folder))


def pinned(profile: str, name: str) -> Record:
    """The record that the executed stage used. Raises FileNotFoundError with the stage to run first."""
    path = RUNS / profile / "pins" / f"{name}.json"
    if not path.exists():
        raise FileNotFoundError(
            f"run {name} of profile {profile} is not there yet: execute its stage first (make book PROFILE={profile}; "
            "a run beside the arms: make variant)"
        )
    note = clock.read_json(path, "folder", "id")
    if not (ROOT / note["folder"] / "run.json").exists():
        raise FileNotFoundError(f"{note['folder']}, which {shown(path)} names, is gone: execute its stage again")
    record = Record(ROOT / note["folder"])
    if record.info["id"] != note["id"]:
        raise RuntimeError(f"{note['folder']} changed since its stage was executed: execute the stage again")
    return record


def pinned_runs(profile: str) -> list[Record]:
    """All pinned records of a profile, by name; without those that are gone, such as a variant that was removed."""
    pins = sorted((RUNS / profile / "pins").glob("*.json"))
    there = [pin for pin in pins if (ROOT / clock.read_json(pin, "folder")["folder"] / "run.json").exists()]
    return [pinned(profile, pin.stem) for pin in there]


def reruns(record: Record) -> list[Record]:
    """Other finished runs of the same identity, in the order found: what the same run gave when it was trained again.

    They are the recorded run and this copy's own, whichever `record` is not, and book/results/<profile>/<run>-rerun
    (any name that begins so), where a second record of a run is kept. A copy of `record` is no rerun.
    """
    profile = record.info["profile"]
    places = [RESULTS / profile / record.name, RUNS / profile / record.name / "record"]
    places += sorted((RESULTS / profile).glob(f"{record.name}-rerun*"))
    found = {json.dumps(record.info, sort_keys=True): record}
    for folder in places:
        if (folder / "run.json").exists():
            other = Record(folder)
            if not differences(record.info["identity"], other.info["identity"]):
                found.setdefault(json.dumps(other.info, sort_keys=True), other)
    return list(found.values())[1:]


def trials(path: Path) -> pd.DataFrame | None:
    """The trials of settings in a trials.csv (`lib.trials`), None where there is none. Raises ValueError as below."""
    numbers = ("seed", "value", "n", "exact", "best_exact", "billed_s", "at_once")
    return read_table(path, ("arm", "parameter", "device", "trainer", "id"), numbers) if path.exists() else None


def read_table(path: Path, texts: tuple[str, ...] = (), numbers: tuple[str, ...] = ()) -> pd.DataFrame:
    """A .csv or .parquet file; ValueError with the file where it is damaged, or lacks rows or one of these columns."""
    try:
        table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    except (OSError, ValueError) as error:  # what pandas and pyarrow raise are kinds of these
        raise ValueError(f"{shown(path)}: damaged: expected a table, got {error}") from None
    for name in (*texts, *numbers):
        if name not in table or table[name].isna().any() or table.empty:
            raise ValueError(f"{shown(path)}: expected rows with the column {name!r}, and a value in each")
        if name in numbers and not pd.api.types.is_numeric_dtype(table[name]):
            raise ValueError(f"{shown(path)}: {name}: got {list(table[name])[:3]}, expected numbers")
    return table


def splits(setup: Record) -> dict[str, list[dict]]:
    """The documents of the splits that `setup` recorded: {"start": [...], "pool": ..., "dev": ..., "heldout": ...}.

    Loads the source again and takes the documents by id. Raises ValueError when one is missing or its content changed.
    """
    p = setup.info["parameters"]
    documents = data.load(p["source"], source_path(p["path"]), p["n_documents"], p["data_seed"], p["place_noise"])
    by_id = {document["id"]: document for document in documents}
    found: dict[str, list[dict]] = {name: [] for name in data.SPLITS}
    for row in setup.splits[setup.splits["split"] != "outside"].itertuples():
        if row.id not in by_id:
            raise ValueError(
                f"document {row.id} of split {row.split} is not in the data ({p['source']} {p['path'] or ''})"
            )
        found[row.split].append(by_id[row.id])
    if data.fingerprint(found) != setup.info["data_fingerprint"]:
        raise ValueError(
            f"the data ({p['source']} {p['path'] or ''}) changed since {setup.name} was recorded: other fingerprint"
        )
    return found


def outside(setup: Record) -> list[dict]:
    """The documents of the text from elsewhere that `setup` recorded, on which last checkpoints are judged; [] if none.

    Raises as `splits`, and FileNotFoundError where the file is not at hand.
    """
    ids, p = set(setup.splits.loc[setup.splits["split"] == "outside", "id"]), setup.info["parameters"]
    documents = data.load("jsonl", source_path(p["outside_path"])) if ids else []
    if ids and data.fingerprint({"outside": documents}) != p["outside_sha256"]:
        raise ValueError(f"outside_path: {p['outside_path']} changed since {setup.name} was recorded")
    return [document for document in documents if document["id"] in ids]


def heldout_at_hand(setup: Record) -> dict[str, dict]:
    """The held-out documents by id where they are invented, so that anyone has them; else, or if changed, none."""
    if setup.info["parameters"].get("source") != "synthetic":
        return {}
    try:
        return {document["id"]: document for document in splits(setup)["heldout"]}
    except ValueError:  # other documents than the recorded ones: their texts would mislead
        return {}


def other_documents(profile: str, documents: list[dict], name: str) -> str:
    """An error text for a source whose content is not the expected one: how far it is from the recorded splits."""
    text = f"{name}: its content is not what documents_sha256 says"
    path = RESULTS / profile / "setup"
    if (path / "run.json").exists():
        wanted = Record(path).splits.query("split != 'outside'")
        there = {id_: sha256 for _, id_, sha256 in data.split_table({"all": documents})}
        differ = sum(there.get(row.id) != row.sha256 for row in wanted.itertuples())
        text += f"; of the {len(wanted)} documents that the recorded study used, {differ} are missing or differ"
    return text + '. With documents_sha256: "" it is a study of its own.'


def source_path(path: str) -> str | None:
    """A data source as `data.load` wants it: a file in the project, else the name as it is (a hub's); None for ""."""
    if not path:
        return None
    return str(ROOT / path) if (ROOT / path).exists() else path


def shown(path: Path) -> str:
    """A path as the reader knows it: relative to the project where it lies inside."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def seal(info: dict) -> str:
    """sha256 of all of run.json but the seal itself (`sealed`), as it is written."""
    return digest(json.loads(json.dumps({key: value for key, value in info.items() if key != "sealed"})))


def file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def progress(line: str) -> None:
    """A line for the terminal, never for the page: the executor shows what is appended to $PROGRESS_FILE."""
    target = os.environ.get("PROGRESS_FILE")
    if target:
        with open(target, "a") as file:
            file.write(line + "\n")
