/* An addon that lies about V8's frames: while it runs, it has replaced what the frames below it hold. */

#include <node_api.h>
#include <stdint.h>
#include <string.h>

#define STACK_WORDS 512
#define MOST_FRAMES 3

static uint64_t moved[8]; /* an object whose map says that it was moved: to itself */

static void burn(void) {
    volatile uint64_t sum = 0;
    for (uint64_t i = 0; i < 20000000; i++)
        sum += i;
}

/* lie(how): 0 cyclic frame pointers, 1 wild functions, 2 functions that were moved to themselves. */
static napi_value lie(napi_env env, napi_callback_info info) {
    size_t count = 1;
    napi_value argument;
    uint32_t how = 0, frames = 0;
    uint64_t *stack = (uint64_t *)__builtin_frame_address(0), *places[MOST_FRAMES], kept[MOST_FRAMES];
    napi_get_cb_info(env, info, &count, &argument, NULL, NULL);
    napi_get_value_uint32(env, argument, &how);
    moved[0] = (uint64_t)moved;
    for (uint32_t at = 2; at < STACK_WORDS && frames < MOST_FRAMES; at++) {
        uint64_t *frame = stack + at, caller = frame[0];
        /* A function's frame: context and function are tagged, the caller's frame is not far above. */
        if ((frame[-1] & 3) != 1 || (frame[-2] & 3) != 1 || caller <= (uint64_t)frame ||
            caller > (uint64_t)(frame + 512) || caller & 7)
            continue;
        places[frames] = how ? frame - 2 : frame;
        kept[frames] = *places[frames];
        frames++;
    }
    for (uint32_t i = 0; i < frames; i++)
        *places[i] = how == 0   ? (uint64_t)(places[i] - 4)
                     : how == 1 ? 0x123456789001 + 0x1000 * i
                                : (uint64_t)moved | 1;
    burn();
    for (uint32_t i = 0; i < frames; i++)
        *places[i] = kept[i];
    return NULL;
}

NAPI_MODULE_INIT() {
    napi_value function;
    napi_create_function(env, "lie", NAPI_AUTO_LENGTH, lie, NULL, &function);
    return function;
}
