"""Numbers that Python asks tensors for while a model is traced: known of constants, told of the example arguments, or left in the tensor."""
