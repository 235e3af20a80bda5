"""These are for the type checker: some would call models, one is wrong on purpose, and a test runs the programs."""

collect_ignore = ["inferred.py", "refused.py", "programs"]
