"""The operator: watches jobs, decides, acts; and the local runner that does the same without Kubernetes."""
