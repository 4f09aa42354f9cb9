"""The language: element types, scalar expressions and Programs, with their printer, verifier and evaluator."""
