"""Statements that become one."""
