"""Written for version 0 of the contract; importing it would be a mistake."""

raise AssertionError("a plugin for another version was imported")
