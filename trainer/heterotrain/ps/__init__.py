"""The parameter server: gradients in, versions out. Never imports user code."""
