"""Bytes to frames to events: no I/O, no Rx, no clock."""
