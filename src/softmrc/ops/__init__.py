"""Operating running devices: control, metrics, recordings."""
