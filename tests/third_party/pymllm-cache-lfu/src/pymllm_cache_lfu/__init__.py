"""An example of a third party's cache policy."""
