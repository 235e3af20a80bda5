"""How tools run. Not operators."""
