"""The subcommands of ``heterotrain``, one module a theme; each only parses, calls and prints."""
