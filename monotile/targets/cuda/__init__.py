"""The CUDA target: CUDA C++, built by NVRTC."""
