"""The networks of the table written plainly: fused attention, one product for queries, keys and values, no options.

Each module's `plain(model)` takes the weights of the library's module, takes its arguments and gives the tensors of its results, so that
the same answer judges both.
"""
