"""Python numbers read from tensors while a model is traced: evaluated from constants, fixed to the values of the example arguments with a guard, or kept
as tensors."""
