"""Writing with language models: prompt, tokens and the choice of each in one kernel."""
