"""Models that nothing here was written for: every type of Hugging Face's `AutoModel`, each made small by one rule."""
