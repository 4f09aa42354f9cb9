"""The language: element types, scalar expressions, Programs; printed, verified and evaluated here."""
