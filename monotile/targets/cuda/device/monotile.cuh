// Everything that generated code uses.
#pragma once
#include "cuda/device/attend.cuh"
#include "cuda/device/barrier.cuh"
#include "cuda/device/check.cuh"
#include "cuda/device/contract.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/gemv.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/message.cuh"
#include "cuda/device/moments.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/ring.cuh"
#include "cuda/device/types.cuh"
