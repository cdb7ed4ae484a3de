"""What a sample weighs, so that profiles of different periods add up."""

from flameherd_agent.model import Profile, Sample


def weight_ns(profile: Profile, sample: Sample) -> int:
    """Nanoseconds that a sample stands for: its value, if that is a time, else value x period."""
    if profile.sample_unit == "nanoseconds":
        return sample.value
    return sample.value * profile.period_ns
