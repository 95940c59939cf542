"""Measure a live model: are its answers right, how fast is it, does that meet the objectives."""
