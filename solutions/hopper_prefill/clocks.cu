// For clocks.py: the same kernels, which write down when they are where.
#define GDN_CLOCKS
#include "kernel.cu"
