/* Prints where the headers of the CPython that it is compiled with have what; names as in
 * layouts/cpython.toml. */
#define Py_BUILD_CORE 1
#include <Python.h>
#include <frameobject.h>
#include <stddef.h>
#include <stdio.h>
#if PY_VERSION_HEX >= 0x03080000
#if PY_VERSION_HEX >= 0x03090000
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#endif
#include <internal/pycore_pystate.h>
#elif PY_VERSION_HEX >= 0x03070000
#include <internal/pystate.h>
#endif
#if PY_VERSION_HEX >= 0x030b0000
#include <internal/pycore_frame.h>
#endif

#define AT(name, type, member) printf("%s %zu\n", name, offsetof(type, member))

int main(void) {
    AT("thread.next", PyThreadState, next);
    AT("thread.thread_id", PyThreadState, thread_id);
#if PY_VERSION_HEX >= 0x030d0000
    AT("thread.top", PyThreadState, current_frame);
#elif PY_VERSION_HEX >= 0x030a0000
    AT("thread.top", PyThreadState, cframe);
#else
    AT("thread.top", PyThreadState, frame);
#endif
#if PY_VERSION_HEX < 0x030b0000
    AT("thread.frame", PyThreadState, frame);
    AT("frame.previous", PyFrameObject, f_back);
    AT("frame.code", PyFrameObject, f_code);
    AT("frame.at", PyFrameObject, f_lasti);
#if PY_VERSION_HEX >= 0x030a0000
    AT("cframe.previous", CFrame, previous);
#endif
#else
    AT("frame.previous", _PyInterpreterFrame, previous);
#if PY_VERSION_HEX >= 0x030d0000
    AT("frame.code", _PyInterpreterFrame, f_executable);
    AT("frame.at", _PyInterpreterFrame, instr_ptr);
#else
    AT("cframe.current", _PyCFrame, current_frame);
    AT("cframe.previous", _PyCFrame, previous);
    AT("frame.code", _PyInterpreterFrame, f_code);
    AT("frame.at", _PyInterpreterFrame, prev_instr);
#endif
#if PY_VERSION_HEX >= 0x030c0000
    AT("frame.entry", _PyInterpreterFrame, owner);
#else
    AT("frame.entry", _PyInterpreterFrame, is_entry);
#endif
    AT("code.qualname", PyCodeObject, co_qualname);
    AT("code.bytecode", PyCodeObject, co_code_adaptive);
#endif
    AT("code.filename", PyCodeObject, co_filename);
    AT("code.name", PyCodeObject, co_name);
    AT("code.line", PyCodeObject, co_firstlineno);
#if PY_VERSION_HEX >= 0x030a0000
    AT("code.lines", PyCodeObject, co_linetable);
#else
    AT("code.lines", PyCodeObject, co_lnotab);
#endif
    printf("text.ascii %zu\n", sizeof(PyASCIIObject));
    printf("text.compact %zu\n", sizeof(PyCompactUnicodeObject));
#if PY_VERSION_HEX >= 0x03070000
    AT("runtime.interpreters", _PyRuntimeState, interpreters.head);
#if PY_VERSION_HEX >= 0x030c0000
    AT("runtime.key", _PyRuntimeState, autoTSSkey._key);
#else
    AT("runtime.key", _PyRuntimeState, gilstate.autoTSSkey._key);
#endif
    AT("interp.next", PyInterpreterState, next);
#if PY_VERSION_HEX >= 0x030b0000
    AT("interp.threads", PyInterpreterState, threads.head);
#else
    AT("interp.threads", PyInterpreterState, tstate_head);
#endif
#endif
    return 0;
}
