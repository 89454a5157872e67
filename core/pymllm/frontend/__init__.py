"""The frontend: prompts in, text out (chat templates, detokenization, stop strings)."""
