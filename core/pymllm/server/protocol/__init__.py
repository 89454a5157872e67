"""What clients may send: one pydantic model per route, and the errors they get."""
