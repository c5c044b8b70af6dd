"""The heterogeneity lab's orchestrator: which runs, their processes, what follows from their traces, the report."""
