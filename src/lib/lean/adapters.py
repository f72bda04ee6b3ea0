"""LoRA layers run and sent the short way: one product instead of five small operations, and weights without a merge."""

import types

import torch
import torch.nn.functional as F
from peft.tuners.lora import Linear as LoraLinear


class _LoraProduct(torch.autograd.Function):
    """y = x W' + bias + s (x A') B', the adapter added inside the second product (no tensor of y's size but y)."""

    @staticmethod
    def forward(ctx, x, weight, bias, a, b, scale):
        y = F.linear(x, weight, bias)
        xa = F.linear(x, a).flatten(0, -2)
        y.view(-1, y.shape[-1]).addmm_(xa, b.t(), alpha=scale)
        ctx.save_for_backward(x, weight, a, b, xa)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx, grad):
        x, weight, a, b, xa = ctx.saved_tensors
        grad = grad.reshape(-1, grad.shape[-1])
        grad_xa = (grad @ b) * ctx.scale
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad @ weight).addmm_(grad_xa, a).view_as(x)
        grad_a = grad_xa.t() @ x.flatten(0, -2)
        grad_b = (grad.t() @ xa) * ctx.scale
        return grad_x, None, None, grad_a, grad_b, None


def _fused_forward(self, x):
    """`peft.tuners.lora.Linear.forward` for one plain adapter; anything else goes PEFT's way."""
    if self.disable_adapters or self.merged or len(self.active_adapters) != 1:
        return type(self).forward(self, x)
    name, base = self.active_adapters[0], self.base_layer
    autocast = torch.is_autocast_enabled(x.device.type)
    if not autocast and x.dtype != self.lora_A[name].weight.dtype:  # PEFT then computes in the adapter's precision
        return type(self).forward(self, x)
    kind = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
    parts = (x, base.weight, base.bias, self.lora_A[name].weight, self.lora_B[name].weight)
    return _LoraProduct.apply(*(None if p is None else p.to(kind) for p in parts), self.scaling[name])


def _cast_unless_autocast(self, x, dtype):
    """Autocast casts x back to the type that it had; generation runs without autocast and needs the cast."""
    return x if torch.is_autocast_enabled(x.device.type) else type(self)._cast_input_dtype(self, x, dtype)


def layers(model) -> dict:
    """{name: LoRA layer} of a PEFT model; empty for any other model."""
    return {name: m for name, m in model.named_modules() if isinstance(m, LoraLinear)}


def not_plain(model) -> str | None:
    """Why the layers of this model cannot be run or sent the short way, or None when they can."""
    found = layers(model)
    if not found:
        return "the model has no LoRA layer"
    for name, m in found.items():
        if type(m) is not LoraLinear or type(m.base_layer) is not torch.nn.Linear:
            return f"{name} is a {type(m).__name__} over a {type(m.base_layer).__name__}"
        if m.lora_variant or m.fan_in_fan_out or any(m.lora_bias.values()) or m.base_layer.weight.requires_grad:
            return f"{name} is not plain LoRA over a frozen weight"
    return None


def run(model, fused: bool, casts: bool) -> None:
    """How the LoRA layers of this instance run: as one product, or PEFT's way with its casts of inputs or without."""
    for m in layers(model).values():
        m.__dict__.pop("forward", None)
        m.__dict__.pop("_cast_input_dtype", None)
        if fused:
            m.forward = types.MethodType(_fused_forward, m)
        if not casts:
            m._cast_input_dtype = types.MethodType(_cast_unless_autocast, m)


def weights(model) -> list:
    """(name in the base model, weight, LoRA layer over it or None) of what an engine that serves this model holds."""
    adapted = {f"{name}.base_layer.weight": m for name, m in layers(model).items()}
    found = []
    for name, weight in model.named_parameters():
        if model.prefix in name or "original_module" in name:
            continue
        own = name.removeprefix("base_model.model.").replace(".base_layer", "").replace("modules_to_save.default.", "")
        found.append((own, weight, adapted.get(name)))
    return found


@torch.no_grad()
def for_engine(weights: list, everything: bool):
    """Yield (name, tensor) that the engine must load: W + s B A for a LoRA layer, the base untouched.

    A merge into a bfloat16 base leaves rounding in it at every sync; here nothing is written to the trained model.
    everything: frozen weights too, for the first sync; later ones need what can have changed only.
    """
    for name, weight, layer in weights:
        if layer is None and not everything and not weight.requires_grad:
            continue
        tensor = weight.data
        if layer is not None:
            for adapter in layer.active_adapters:
                if adapter in layer.lora_A:
                    delta = layer.lora_B[adapter].weight @ layer.lora_A[adapter].weight
                    tensor = torch.add(tensor, delta, alpha=layer.scaling[adapter])
            tensor = tensor.to(weight.dtype)
        yield name, tensor
