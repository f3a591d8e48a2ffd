// Calls a kernel once for each step of a loop, with pointers that advance.
typedef long long i64;
typedef void (*Kernel)(void**, const i64*);
enum { MOST = 64 };

// pointers: the kernel's; numbers: its address, steps, how many pointers, and for each how many bytes it begins after its
// tensor does, and advances
extern "C" void steps(void** pointers, const i64* numbers) {
  Kernel kernel = (Kernel)numbers[0];
  i64 count = numbers[2];
  const i64* moves = numbers + 3;
  char* now[MOST];
  for (i64 i = 0; i < count; i++) now[i] = (char*)pointers[i] + moves[2 * i];
  for (i64 step = 0; step < numbers[1]; step++) {
    void* given[MOST];
    for (i64 i = 0; i < count; i++) given[i] = now[i], now[i] += moves[2 * i + 1];
    kernel(given, numbers);
  }
}
