"""The pure mathematics: synchronisation policies, shares, data cursor, layout. Standard library only; no I/O."""
