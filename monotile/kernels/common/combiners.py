"""The functors of `targets/cuda/device/reduce.cuh`, by combiner."""

COMBINER = {
    "sum": "Sum",
    "prod": "Prod",
    "max": "Max",
    "min": "Min",
    "any": "Any",
    "all": "All",
    "argmax": "ArgMax",
    "argmin": "ArgMin",
}
