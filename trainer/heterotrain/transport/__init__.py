"""Tensor transport: an interface (`base`) and its carriers."""
