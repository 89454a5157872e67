"""What clients receive: whole answers and stream chunks, one file per protocol."""
