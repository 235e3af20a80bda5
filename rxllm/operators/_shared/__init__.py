"""What several operators are built from. Nothing in here is an operator."""
