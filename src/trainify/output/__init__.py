"""How findings and changes are shown."""
