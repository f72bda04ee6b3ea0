# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Setup: the machine, the text, and the base model
#
# **Question.** On which machine, on which documents and from which model does everything that follows start, and how
# well does the model do before any training?
#
# **What it is not.** The published study trained Qwen3-1.7B on WikiBio {cite}`fan2026curves`. The profile decides what
# is trained here; the same code runs the published set-up with the profile `qwen3`.

# %% tags=["parameters"]
profile: str = "laptop"  # which profile these parameters belong to
source: str = "synthetic"  # synthetic | jsonl | bioguide | wikibio
path: str = ""  # file of the source, from the project's root ("" for synthetic)
documents_sha256: str = ""  # expected content of the source; needed where the file itself is not at hand
n_documents: int | None = 2000  # documents to generate or read (null: all of the file)
data_seed: int = 0  # seed of the synthetic documents
place_noise: float = 0.0  # synthetic documents with a wrong place label (share)
n_start: int = 256  # labelled documents of the shared start
n_pool: int = 800  # documents of the arms
n_dev: int = 200  # documents on which settings are chosen
n_heldout: int = 300  # documents on which every checkpoint is judged
split_seed: int = 0  # seed of the split
outside_path: str = ""  # a .jsonl(.gz) of another text, on which last checkpoints are judged too ("": none)
outside_sha256: str = ""  # its expected content; needed where the file itself is not at hand
instruction: str = ""  # what stands before each document ("" for the default of lib.data)
base: str = "src/lib/tiny"  # folder of the base model, from the project's root
base_sha256: str = ""  # expected sha256 of its weights; needed where the model itself is not at hand
engine: str = "transformers"  # transformers | vllm: what decodes the documents
dtype: str = "float32"  # float32 | bfloat16: type of the base weights
context_tokens: int = 240  # longest prompt and completion together
max_completion_tokens: int = 48  # longest completion

# %% tags=["checks", "hide-input"]
# Before any notebook starts, `lib.build.params` runs the cells with this tag on the values that they are to get.
for name, value, known in (
    ("source", source, ("synthetic", "jsonl", "bioguide", "wikibio")),
    ("engine", engine, ("transformers", "vllm")),
    ("dtype", dtype, ("float32", "bfloat16")),
):
    if value not in known:
        raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(known)}")
if outside_sha256 and not outside_path:
    raise ValueError(f"outside_sha256: got {outside_sha256[:12]!r} without outside_path, expected both or neither")

# %%
import pandas as pd

from lib import baseline, data, decode, evaluate, records, rewards, runs
from lib.paths import ROOT
from lib.report import plots

instruction = instruction or data.INSTRUCTION

# %% [markdown]
# ## The text
#
# A document is a biography lead with five labels: name, birth date, birth place, death date, death place; a label is
# null where the text does not say. First it is seen which base model there is; then all documents are loaded and
# checked before anything is run; one that breaks the form stops here, by file and line.

# %%
base_at_hand = (ROOT / base).exists()
if base_at_hand:
    found = evaluate.weights_sha256(ROOT / base)
    if base_sha256 and found != base_sha256:
        raise ValueError(f"{base}: weights {found[:12]}, but base_sha256 says {base_sha256[:12]}")
    base_sha256 = found
elif not base_sha256:
    raise FileNotFoundError(f"base: {base!r} is not there, and base_sha256 is empty, so no record can be recognised")

at_hand = source in ("synthetic", "wikibio") or (ROOT / path).exists()
if at_hand:
    documents = data.load(source, records.source_path(path), n_documents, data_seed, place_noise)
    found = data.fingerprint({"all": documents})
    if documents_sha256 and found != documents_sha256:
        raise ValueError(records.other_documents(profile, documents, path or source))
    documents_sha256 = found
elif not documents_sha256:
    raise FileNotFoundError(
        f"path: {path!r} is not there, and documents_sha256 is empty, so no record can be recognised"
    )

outside_at_hand = not outside_path or (ROOT / outside_path).exists()
outside = data.load("jsonl", ROOT / outside_path) if outside_path and outside_at_hand else []
if outside:
    found = data.fingerprint({"outside": outside})
    if outside_sha256 and found != outside_sha256:
        raise ValueError(f"outside_path: {outside_path}: content {found[:12]}, but outside_sha256 is {outside_sha256}")
    outside_sha256 = found
elif outside_path and not outside_sha256:
    raise FileNotFoundError(f"outside_path: {outside_path!r} is not there, and outside_sha256 is empty")

# %% [markdown]
# ## The run
#
# A run is recognised by what it was made from: documents, base weights and these parameters. If a record matches, its
# figures are shown; if not, the base model is judged now.

# %%
run = runs.open_run(
    "00_setup",
    profile,
    "setup",
    data=documents_sha256,
    model=dict(name=base, sha256=base_sha256),
    parameters=dict(
        source=source,
        path=path,
        n_documents=n_documents,
        data_seed=data_seed,
        place_noise=place_noise,
        n_start=n_start,
        n_pool=n_pool,
        n_dev=n_dev,
        n_heldout=n_heldout,
        split_seed=split_seed,
        outside_path=outside_path,
        outside_sha256=outside_sha256,
        instruction=instruction,
        base=base,
        engine=engine,
        dtype=dtype,
        context_tokens=context_tokens,
        max_completion_tokens=max_completion_tokens,
    ),
    engine=engine,
)

# %%
if run.live:
    if not (at_hand and base_at_hand and outside_at_hand):
        needed = ", ".join(filter(None, (path or source, base, outside_path)))
        raise FileNotFoundError(f"{run.name} must be made anew and needs all of {needed}")
    tokenizer = decode.load_tokenizer(ROOT / base)
    kept, too_long = data.fits(documents, tokenizer, context_tokens, max_completion_tokens, instruction)
    if not kept:
        limits = f"context_tokens {context_tokens} and max_completion_tokens {max_completion_tokens}"
        raise ValueError(f"none of the {len(documents)} documents and its answer fits into {limits}")
    splits = data.split(kept, dict(start=n_start, pool=n_pool, dev=n_dev, heldout=n_heldout), split_seed)
    unseen = data.apart(outside, documents)  # nobody who is in the study's own text
    unseen, outside_long = data.fits(unseen, tokenizer, context_tokens, max_completion_tokens, instruction)
    if outside and not unseen:
        left = f"{len(outside_long)} are too long, the others about people of the study's own text"
        raise ValueError(f"outside_path: {outside_path}: of {len(outside)} documents {left}; expected one or more left")
    run.start_clock()
    run.mark_trained()  # nothing is trained here, so nothing is billed
    predictions, checkpoints = evaluate.checkpoints(
        run,
        {0: None},
        splits["heldout"],
        instruction,
        unseen,
        engine=engine,
        base=ROOT / base,
        dtype=dtype,
        max_completion_tokens=max_completion_tokens,
        context_tokens=context_tokens,
    )
    run.clock.stop()
    sample = splits["heldout"][:100]
    ids = [
        tokenizer.apply_chat_template(data.messages(d, instruction), add_generation_prompt=True, **data.CHAT)[
            "input_ids"
        ]
        for d in sample
    ]
    answers = tokenizer([data.answer(d) for d in sample], add_special_tokens=False)["input_ids"]
    run.finish(
        tables=dict(
            predictions=predictions,
            checkpoints=checkpoints,
            splits=pd.DataFrame(data.split_table(splits | {"outside": unseen}), columns=["split", "id", "sha256"]),
            **evaluate.outside(run, 0, unseen),
        ),
        facts=dict(
            documents=len(documents),
            too_long=len(too_long),
            known=data.known(splits["heldout"]),
            baseline=baseline.counts(splits["heldout"]),
            outside=dict(
                read=len(outside), documents=len(unseen), too_long=len(outside_long), known=data.known(unseen)
            ),
            prompt_tokens=sum(map(len, ids)) / len(ids),
            completion_tokens=sum(map(len, answers)) / len(answers) + 1,
        ),
        data=data.fingerprint(splits),
    )
record = run.record

# %% [markdown]
# ## Machine and versions
#
# The machine that made the record, not the one that shows it.

# %% tags=["hide-input"]
device = record.info["device"]
versions = pd.Series({"device": device["name"], "kind": device["kind"], **record.info["versions"]}).dropna()
plots.table(versions.rename_axis("what").rename("which").reset_index(), "versions", "What made the record.")

# %% [markdown]
# ## Splits
#
# No document and no person is in two splits. Settings are chosen on `dev`; `heldout` is only ever judged.

# %% tags=["hide-input"]
facts = record.info["facts"]
print(f"{facts['documents']} documents read; {facts['too_long']} do not fit {context_tokens} tokens and are left out.")
other = facts.get("outside", {})
if other.get("read"):
    print("Of another text {documents} of {read} documents; {too_long} are too long.".format(**other))
    print("Those left out besides are about people who are in this text.")
print(f"About {facts['prompt_tokens']:.0f} tokens a prompt and {facts['completion_tokens']:.0f} a completion.")
counts = record.splits.groupby("split").size().reindex(data.SPLITS).rename("documents").reset_index()
plots.table(counts, "splits", f"Documents in each split; fingerprint {record.info['data_fingerprint'][:12]}.")

# %% [markdown]
# What the model is asked, and what a completion earns:

# %%
print(instruction, "\n")
print(rewards.formula())

# %% [markdown]
# ## The base model before any training

# %% tags=["hide-input"]
row = record.checkpoints.iloc[0]
print(f"Exact records: {row.exact} of {row.n} held-out documents; valid JSON: {row.valid} of {row.n}.")

# %% [markdown]
# ## Recap
#
# Every later stage starts from these splits and this model, and says so in its record: the fingerprint of the splits
# and the sha256 of the base weights are part of each run's identity.
