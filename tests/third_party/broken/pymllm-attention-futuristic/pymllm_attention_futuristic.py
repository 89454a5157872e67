"""Written for version 2 of the contract; importing it would be a mistake."""

raise AssertionError("a plugin for another version was imported")
