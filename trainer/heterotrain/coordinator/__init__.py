"""The coordinator: a gRPC shell around `heterotrain_core.run`. Imports no torch, so that it starts fast."""
