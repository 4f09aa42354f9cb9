"""The lowerings of operators, by subject: ATen's, and PyTorch's control flow."""
