"""gRPC stubs, certificates and channels shared by operator and trainer."""
