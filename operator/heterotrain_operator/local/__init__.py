"""Runs a job as processes on this machine: the same coordinator, shards and workers as in a cluster, without
Kubernetes.

Flow: `manifest` (file and overrides) -> `run_folder` (files each process needs) -> `runner` (observe -> `decide` ->
act) -> `report`.
"""
