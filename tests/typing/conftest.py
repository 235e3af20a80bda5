"""These are for the type checker; running them would call models, and one of them is wrong on purpose."""

collect_ignore = ["inferred.py", "refused.py"]
