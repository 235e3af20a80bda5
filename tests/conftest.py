from hypothesis import HealthCheck, settings

# A busy machine is no fault of the code's.
settings.register_profile("rxllm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rxllm")
