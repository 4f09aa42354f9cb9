"""Text generation with language models: prompt, sampling and all tokens in one kernel."""
