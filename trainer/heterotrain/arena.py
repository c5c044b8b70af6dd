"""A worker's memory for the model: one flat arena that the model's tensors are views of, and one for what is pushed.

Versions are received straight into the model and gradients are sent straight from where they were summed. On CUDA both
arenas lie on the device and have a page-locked twin in host memory, with one copy of the whole in between.
"""

from __future__ import annotations

import torch

from heterotrain.errors import UsageError
from heterotrain.manifest import Entry, ModelTensors
from heterotrain.tensors import allocate, byte_view, elements, region_view
from heterotrain_core.layout import Layout, Region, TensorKind


class Arena:
    """Binds a model to flat memory (`Layout`); the values of the model are kept. Not thread-safe."""

    def __init__(self, model: ModelTensors, layout: Layout, device: torch.device) -> None:
        self._entries = model.entries
        self._layout = layout
        self._host_values, self._values = _twins(layout.global_bytes, device)
        self._host_pushed, self._pushed = _twins(layout.global_bytes, device)
        self._views = tuple(self._view(self._values, i) for i in range(len(self._entries)))
        for entry, view in zip(self._entries, self._views, strict=True):
            view.copy_(entry.tensor.detach())
            entry.tensor.data = view
        self._pulled_floats = [region_view(self._values, r).clone() for r in self._float_regions]

    @property
    def values_memory(self) -> memoryview:
        """Host memory that a version is received into (initial values: sent from); format "B"."""
        return byte_view(self._host_values)

    @property
    def pushed_memory(self) -> memoryview:
        """Host memory that gradients, differences and values are sent from; format "B"."""
        return byte_view(self._host_pushed)

    def gradient_targets(self) -> list[torch.Tensor]:
        """Where the gradients of `ModelTensors.trained` belong, in that order."""
        return [self._view(self._pushed, i) for i, e in enumerate(self._entries) if e.spec.kind is TensorKind.PARAMETER]

    def before_initial_push(self) -> None:
        """Bring the model's values to `values_memory`."""
        if self._host_values is not self._values:
            self._host_values.copy_(self._values)

    def after_pull(self) -> None:
        """Bring `values_memory`, which holds a version now, to the model; later differences are counted from it."""
        if self._host_values is not self._values:
            self._values.copy_(self._host_values)
        for kept, region in zip(self._pulled_floats, self._float_regions, strict=True):
            kept.copy_(region_view(self._values, region))

    def before_push(self) -> None:
        """Add the buffers' differences and values to the gradients and bring all of it to `pushed_memory`."""
        self._take_replaced()
        for kept, region in zip(self._pulled_floats, self._float_regions, strict=True):
            values = region_view(self._values, region)
            difference = torch.sub(values, kept, out=region_view(self._pushed, region))
            # A constant -inf (an attention mask, say) has not changed; inf - inf would say NaN.
            difference.masked_fill_(values == kept, 0)
        for region in self._layout.regions:
            if region.kind is TensorKind.INTEGER_BUFFER:
                region_view(self._pushed, region).copy_(region_view(self._values, region))
        if self._host_pushed is not self._pushed:
            self._host_pushed.copy_(self._pushed)

    def not_finite(self) -> str:
        """Names of the pushed tensors that hold NaN or Inf, for messages; empty if none does."""
        pushed = {TensorKind.PARAMETER, TensorKind.FLOAT_BUFFER}
        bad = [
            e.spec.name
            for i, e in enumerate(self._entries)
            if e.spec.kind in pushed and not bool(torch.isfinite(self._view(self._pushed, i)).all())
        ]
        return ", ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")

    @property
    def _float_regions(self) -> list[Region]:
        return [r for r in self._layout.regions if r.kind is TensorKind.FLOAT_BUFFER]

    def _view(self, arena: torch.Tensor, i: int) -> torch.Tensor:
        spec = self._layout.tensors[i]
        return elements(arena, spec.dtype, self._layout.tensor_offsets[i], spec.num_elements).view(spec.shape)

    def _take_replaced(self) -> None:
        """Take over buffers that the script assigned anew (``self.mean = …``); refuse parameters that it moved away."""
        for entry, view in zip(self._entries, self._views, strict=True):
            present = getattr(entry.owner, entry.key)
            if present is entry.tensor and present.data_ptr() == view.data_ptr():
                continue
            self._refuse_replaced(entry, present)
            view.copy_(present.detach())
            entry.tensor.data = view
            setattr(entry.owner, entry.key, entry.tensor)

    @staticmethod
    def _refuse_replaced(entry: Entry, present: object) -> None:
        spec, buffers = entry.spec, {TensorKind.FLOAT_BUFFER, TensorKind.INTEGER_BUFFER}
        alike = (
            spec.kind in buffers
            and isinstance(present, torch.Tensor)
            and present.shape == entry.tensor.shape
            and present.dtype == entry.tensor.dtype
        )
        if not alike:
            raise UsageError(
                f"model: tensor `{spec.name}` was replaced, moved or converted after prepare; do that before it"
            )


def _twins(num_bytes: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Zeroed memory on the host and on the device; the same tensor if the device is the host."""
    if device.type == "cpu":
        host = allocate(num_bytes).zero_()
        return host, host
    host = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True)
    return host, torch.zeros(num_bytes, dtype=torch.uint8, device=device)
