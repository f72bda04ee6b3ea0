"""What all lean trainers do to the modules of their model, and undo: LoRA layers, norms, compiled layers, the mode."""

import contextlib
import functools
import itertools

import torch

from lib.lean import adapters, norms

SAVINGS = {
    "casts": "LoRA inputs are not cast to float32 and back",
    "lora": "a LoRA layer runs as one product (lib.lean.adapters)",
    "norms": "RMS normalisation runs as one operation (lib.lean.norms)",
    "mode": "the model's modules are not visited at every micro-batch and step, to set their mode and list parameters",
}
OPTIONAL = {"compile": "decoder layers are compiled: the first steps take a minute, rounding differs"}
FORWARD = {"lora", "norms", "compile"}  # those that compute the forward pass otherwise


def use(model, normalisations: list, savings) -> None:
    """Run the modules of this model as these savings say; an empty set puts them back as PEFT made them.

    normalisations: those of `norms.layers(model)`.
    """
    norms.run(normalisations, fused="norms" in savings)
    adapters.run(model, fused="lora" in savings, casts="casts" not in savings)
    for layer in getattr(model.get_decoder(), "layers", ()):
        if "compile" not in savings:
            layer._compiled_call_impl = None
        elif layer._compiled_call_impl is None:
            layer._compiled_call_impl = _compiled(layer)
    model.__dict__.pop("parameters", None)
    if "mode" in savings:
        model.parameters = functools.partial(_listed, list(model.parameters()))


def keep_mode(model, kept: bool) -> None:
    """Let `model.train` and `model.eval`, which visit every module, return at once where the mode stays; or undo it."""
    model.__dict__.pop("train", None)
    if kept:
        model.train(model.training)  # all modules alike, and kept so from here on
        model.train = functools.partial(_into_mode, model)


def settle(wanted, known: list, conditions, say) -> frozenset:
    """The wanted savings without those that are off, each with its reason said.

    conditions: (whether it holds, savings that it switches off, reason); the first reason stands. say: prints a line.
    Raises ValueError for a name that is not known.
    """
    unknown = set(wanted) - set(known)
    if unknown:
        raise ValueError(f"savings: got {sorted(unknown)}; expected some of {known}")
    off = {}
    for holds, names, reason in conditions:
        if holds:
            off = {name: reason for name in names if name in wanted} | off
    for reason, names in itertools.groupby(sorted(off, key=off.get), key=off.get):
        say(f"{', '.join(names)} off: {reason}")
    return frozenset(wanted) - set(off)


def has_dropout(model) -> bool:
    """Whether a pass in training mode draws random numbers."""
    drawn = [m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)]
    drawn.append(getattr(model.config.get_text_config(), "attention_dropout", 0.0) or 0.0)
    return max(drawn) > 0


def plain_attention(model) -> bool:
    """Whether every layer attends by SDPA to all earlier positions."""
    config = model.config.get_text_config()
    windowed = "sliding_attention" in (getattr(config, "layer_types", None) or [])
    return config._attn_implementation == "sdpa" and not windowed


class LeanTrainer:
    """Mixin before a trainer of TRL: what the lean trainers say, check, and undo.

    A subclass has `savings`, its class FORWARD (those that compute the forward pass otherwise), and `_use_modules`.
    """

    def _say(self, line: str) -> None:
        if self.accelerator.is_main_process:
            print(f"lean: {line}")

    @contextlib.contextmanager
    def _modules(self, savings, after=frozenset()):
        """The modules run as `savings` say in here, and as `after` says from then on (stock: as PEFT made them)."""
        self._use_modules(savings)
        try:
            yield
        finally:
            self._use_modules(after)

    def modules_in_use(self):
        """A context in which the modules run as the savings say; `train` opens it by itself."""
        return self._modules(self.savings)

    def train(self, *args, **kwargs):
        with self.modules_in_use():
            return super().train(*args, **kwargs)

    def _to_check(self, lengths) -> bool:
        """Whether a row is longer than earlier checks cover, which is an eighth more than they saw. lengths (B)."""
        longest = int(lengths.max())
        if longest <= self._checked:
            return False
        self._checked = longest * 9 // 8
        return True

    def _compare(self, ours, stocks, stocks_again) -> None:
        """Drop the savings of FORWARD for the rest of the run, and say so, where log-probabilities part from stock's.

        Three tensors of one shape: ours, stock's, and stock's padded otherwise. They part where the root mean square is
        above float32's rounding, or in bfloat16 above what stock itself shows when it is padded otherwise.
        """
        exact = next(self.model.parameters()).dtype == torch.float32 and self.accelerator.mixed_precision == "no"
        gap, noise = ((x - stocks).square().mean().sqrt().item() for x in (ours, stocks_again))
        if gap <= (1e-4 if exact else 0.02) + 3 * noise:  # a gap that is no number is wrong too
            return
        self._say(
            f"log-probabilities part from TRL's by {gap:.1e} (root mean square; TRL's own, padded otherwise, by "
            f"{noise:.1e}): {', '.join(sorted(self.savings & self.FORWARD))} off from here"
        )
        self.savings -= self.FORWARD
        self._use_modules(self.savings)


def _compiled(layer):
    """A call of the layer that is compiled for training; other calls (generation, scoring) stay as they are."""
    if not hasattr(layer, "_for_training"):  # one compiled function a layer, however often it is switched on
        layer._for_training = torch.compile(layer._call_impl, dynamic=True)

    def call(*args, **kwargs):
        return (layer._for_training if torch.is_grad_enabled() else layer._call_impl)(*args, **kwargs)

    return call


def _into_mode(model, mode=True):
    """`Module.train`, which visits every module, where the mode changes; `eval` comes here too."""
    return model if model.training == mode else type(model).train(model, mode)


def _listed(parameters, recurse=True):
    """`Module.parameters` of a model that gets no new ones."""
    return iter(parameters)
