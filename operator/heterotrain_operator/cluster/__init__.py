"""Jobs on a cluster as a user of the command line sees them: through the API server, with the rights of that user."""
