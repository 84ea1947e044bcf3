"""Models that run: what is done to ops and modules in memory, not to files."""
