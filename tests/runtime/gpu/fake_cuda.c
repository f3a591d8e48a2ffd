/* A driver library for tests: it writes down what it is asked for, and fails where it is told to. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define MANY 64
typedef struct {
    int64_t function, gx, gy, gz, threads, shared, stream, context, count;
    int64_t words[MANY];
} Launch;

Launch fake_launches[256];
int fake_count = 0, fake_num_params = 0, fake_loads = 0, fake_capture_mode = 0, fake_shared_set = -1;
_Thread_local int fake_depth = 0;
int fake_fail_launch = 0, fake_fail_load = 0, fake_fail_loads = 0, fake_max_threads = 1024, fake_max_shared = 232448;
static _Thread_local void *stack[16] = {0};

int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int index) { *device = 100 + index; return index < 4 ? 0 : 101; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(intptr_t)(0xc000 + device); return 0; }
int cuCtxGetCurrent(void **context) { *context = stack[fake_depth]; return 0; }
int cuCtxPushCurrent_v2(void *context) { stack[++fake_depth] = context; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = stack[fake_depth--]; return 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { int old = fake_capture_mode; fake_capture_mode = *mode; *mode = old; return 0; }
int cuModuleLoadData(void **module, const void *image) { *module = (void *)(intptr_t)++fake_loads; return fake_fail_loads-- > 0 ? fake_fail_load : 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = (char *)module + 0xf00; return 0; }
int cuDeviceGetAttribute(int *value, int kind, int device) { *value = fake_max_shared; return 0; }
int cuFuncGetAttribute(int *value, int kind, void *function) { *value = kind == 0 ? fake_max_threads : 0; return 0; }
int cuFuncSetAttribute(void *function, int kind, int value) { fake_shared_set = value; return 0; }
int cuGetErrorString(int code, const char **text) { *text = "the fake's words"; return 0; }

int
cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
               void *stream, void **params, void **extra)
{
    if (fake_fail_launch) {
        return fake_fail_launch;
    }
    Launch *launch = &fake_launches[__atomic_fetch_add(&fake_count, 1, __ATOMIC_RELAXED) % 256];
    *launch = (Launch){(intptr_t)function, gx, gy, gz, bx, shared, (intptr_t)stream, (intptr_t)stack[fake_depth], fake_num_params};
    for (int i = 0; i < fake_num_params && i < MANY; i++) {
        memcpy(&launch->words[i], params[i], 8); /* the caller's words have 8 bytes */
    }
    return 0;
}
