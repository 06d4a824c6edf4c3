"""What SoftMRC claims about itself, measured. Each module is one bench: `measure()` returns the figures by name."""
