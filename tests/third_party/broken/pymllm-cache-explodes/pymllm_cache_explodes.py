"""Raises when it is imported, in two lines, as real exceptions do."""

raise RuntimeError("the flux capacitor\nis not charged")
