// Everything that generated code uses.
#pragma once
#include "cuda/attend.cuh"
#include "cuda/barrier.cuh"
#include "cuda/check.cuh"
#include "cuda/contract.cuh"
#include "cuda/copy.cuh"
#include "cuda/math.cuh"
#include "cuda/message.cuh"
#include "cuda/moments.cuh"
#include "cuda/reduce.cuh"
#include "cuda/types.cuh"
