/* A CUDA driver for tests: enough of libcuda to load, launch and look at what a launch was given. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { RECORD = 64 };
int fake_version = 13000, fake_resident = 1, fake_multiprocessors = 4, fake_cooperative = 1;
int fake_launches, fake_fail_load, fake_fail_launch, fake_no_failure;
unsigned* fake_failure;
unsigned fake_grid, fake_block, fake_shared;
void* fake_stream;
uint64_t fake_parameters[RECORD];
static __thread void* current;
static int relaxed;

int cuInit(unsigned f) { return 0; }
int cuDriverGetVersion(int* v) { *v = fake_version; return 0; }
int cuGetErrorName(int s, const char** p) { *p = "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int s, const char** p) { *p = "a fake error"; return 0; }
int cuDeviceGet(int* h, int d) { *h = d; return 0; }
int cuDeviceGetAttribute(int* v, int a, int d) {
    *v = a == 16 ? fake_multiprocessors : a == 95 ? fake_cooperative : 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** c, int d) { *c = (void*)0x1000; return 0; }
int cuCtxGetCurrent(void** c) { *c = current; return 0; }
int cuCtxSetCurrent(void* c) { current = c; return 0; }
int cuModuleLoadData(void** m, const char* image) { *m = (void*)0x2000; return fake_fail_load ? 200 : current ? 0 : 201; }
int cuModuleGetFunction(void** f, void* m, const char* name) { *f = (void*)0x3000; return 0; }
int cuFuncGetModule(void** m, void* f) { *m = (void*)0x2000; return 0; }
int cuModuleGetGlobal_v2(uint64_t* p, size_t* n, void* m, const char* name) {
    *p = (uint64_t)&fake_failure, *n = 8;
    return fake_no_failure ? 500 : 0;
}
int cuMemcpyHtoD_v2(uint64_t d, const void* s, size_t n) { memcpy((void*)d, s, n); return 0; }
int cuMemHostAlloc(void** p, size_t n, unsigned flags) { *p = malloc(n); return flags == 3 ? 0 : 1; }
int cuFuncSetAttribute(void* f, int a, int v) { return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, void* f, int t, size_t s) { *n = fake_resident; return 0; }
int cuMemAlloc_v2(uint64_t* p, size_t n) { *p = (uint64_t)malloc(n); return relaxed ? 0 : 900; }
int cuMemsetD8Async(uint64_t p, unsigned char v, size_t n, void* s) { memset((void*)p, v, n); return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t d, const void* s, size_t n, void* stream) { memcpy((void*)d, s, n); return 0; }
int cuStreamCreate(void** s, unsigned f) { *s = (void*)0x4000; return 0; }
int cuStreamSynchronize(void* s) { return 0; }
int cuStreamDestroy_v2(void* s) { return 0; }
int cuThreadExchangeStreamCaptureMode(int* mode) {
    int before = relaxed ? 2 : 0;
    relaxed = *mode == 2;
    *mode = before;
    return 0;
}
struct attribute { unsigned id; char pad[4]; int value; char rest[60]; };
struct config {
    unsigned grid[3], block[3], shared;
    void* stream;
    struct attribute* attributes;
    unsigned count;
};
int cuLaunchKernelEx(const struct config* c, void* f, void** parameters, void** extra) {
    if (!current) return 201;
    if (fake_fail_launch) return 719;
    if (c->count != 1 || c->attributes->id != 2 || c->attributes->value != 1 || extra) return 1;
    fake_launches++;
    fake_grid = c->grid[0], fake_block = c->block[0], fake_shared = c->shared, fake_stream = c->stream;
    memcpy(fake_parameters, parameters[0], 16 + 8 * 3);
    return 0;
}
