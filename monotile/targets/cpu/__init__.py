"""The CPU target: C, built by the system's compiler."""
