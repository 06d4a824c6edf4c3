"""Designs of fabrics: cost, availability, sensitivity."""
