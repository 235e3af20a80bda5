"""From bytes to frames to events, without I/O, Rx or a clock."""
