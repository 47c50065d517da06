"""What all tests share: how hard hypothesis tries. `make soak` chooses the profile `soak`."""

from hypothesis import HealthCheck, settings

# No deadline: on a busy machine it measures the neighbours. A failure prints how to see it again.
settings.register_profile("test", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", parent=settings.get_profile("test"), max_examples=5_000)
settings.load_profile("test")
