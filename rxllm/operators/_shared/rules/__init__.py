"""The rules that `verify` checks, as a feeder without Rx."""
