"""The CUDA runner: decode steps and small prefills as graph replays, and no waiting for the device."""
