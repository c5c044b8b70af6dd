"""The adaptation loop without I/O or clock: samples -> `estimate` -> `detect` -> `plan` -> `guard` -> a decision.

`loop.step` is the one entry; local runner and operator feed it with what the coordinator says and carry its proposals
out. Section B and C of the algorithms, section 6 of the design.
"""
