"""No prefix reuse."""
