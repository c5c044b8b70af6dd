"""The information service in a cluster: rules as resources, and everything put together in the operator's process."""
