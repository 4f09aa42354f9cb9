"""Example models. `make(dtype)` of each module returns a model in eval mode with random weights, and its arguments.
Nothing is downloaded."""

EXAMPLES = {
    "bert_base": "monotile.examples.bert_base:make",
    "lstm": "monotile.examples.lstm:make",
    "lstm_unrolled": "monotile.examples.lstm_unrolled:make",
    "mmoe": "monotile.examples.mmoe:make",
}
