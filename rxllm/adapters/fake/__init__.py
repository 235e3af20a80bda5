"""A scripted model for tests."""

from rxllm.adapters.fake.adapter import Fake

__all__ = ["Fake"]
