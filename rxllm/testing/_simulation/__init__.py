"""Programs in a simulated world: time is virtual, the network is in memory, and every fault comes from a seed."""
