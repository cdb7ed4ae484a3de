/* The native side of Callback.java. It uses nothing but JNI's table, so that it loads beside any C library.
 */
#include <jni.h>

__attribute__((noinline)) static jint call(JNIEnv *env, jclass type, jint depth) {
    jmethodID method = (*env)->GetStaticMethodID(env, type, depth ? "bottom" : "middle", "(I)I");
    jint result = method ? (*env)->CallStaticIntMethod(env, type, method, depth) : 0;
    __asm__ volatile("" ::: "memory"); /* no tail call */
    return result;
}

JNIEXPORT jint JNICALL Java_Callback_down(JNIEnv *env, jclass type, jint depth) {
    jint result;
    while (depth < 0) /* for ever */
        __asm__ volatile("" ::: "memory");
    result = call(env, type, depth);
    __asm__ volatile("" ::: "memory");
    return result + 1;
}
