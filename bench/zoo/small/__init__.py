"""Small networks of many kinds, whose generated sources are compared (`bench.sources`): quick to compile, none of them a published model.

One function each, which `small` puts in `SMALL` by its name. It makes its tensors in the default dtype and gives (model, args).
"""

from bench.zoo.small import convolutions, operations, products, sequences, tables
from bench.zoo.small.registry import SMALL

__all__ = ["SMALL", "convolutions", "operations", "products", "sequences", "tables"]
