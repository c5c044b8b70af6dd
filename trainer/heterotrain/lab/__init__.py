"""The worker of the heterogeneity lab (``heterotrain lab``): one training loop, run in a job, under DDP, or alone."""
