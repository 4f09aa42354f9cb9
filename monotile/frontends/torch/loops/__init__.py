"""Python loops that take as many turns as a size of the call says: heard while a model is traced, their text converted, their body traced once,
and what lies between its marks made a `scan`."""
