"""Slow shapes of bodies, for the doctor and for `report_slow_shapes` in production."""
