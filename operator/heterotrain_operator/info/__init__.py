"""The information service: collecting, keeping and deriving what schedulers must know."""
