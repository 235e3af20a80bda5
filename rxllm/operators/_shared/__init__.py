"""The parts that operators are built from. None of them is an operator."""
