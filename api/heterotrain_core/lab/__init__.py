"""The heterogeneity lab (``heterotrain lab``): what orchestrator and workers share."""
