"""The form that the scheduler relies on."""
