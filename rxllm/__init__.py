"""LLM streams as cold reactivex Observables of typed events, and the operators to compose them."""
