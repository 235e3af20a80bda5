"""The kit for authors of operators and adapters.

`loopback` is a real server that notes who closed when, `marbles` draws timed streams, `strategies` generates values and
events.
"""
