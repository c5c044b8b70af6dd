"""The synchronisation policies: one state machine (`policy`) around one `mode` at a time. Pure; no I/O, no clock."""
