"""The mixed soak: every API at once, for an hour, with faults; what grows without bound fails it. `make soak-mixed`."""
