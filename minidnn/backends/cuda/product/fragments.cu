// What kernels of products on tensor cores share, of elements T and so many THREADS of a block.

// The tests' emulator has functions of the same names.
#ifdef __CUDACC__
template <class> MD_FUNCTION void copy(unsigned int to, const T *from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               : : "r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
MD_FUNCTION void fragments(unsigned int (&r)[4], unsigned int at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
MD_FUNCTION void fragments_turned(unsigned int (&r)[4], unsigned int at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
template <class>
MD_FUNCTION void multiply(float (&c)[4], const unsigned int (&a)[4], unsigned int b0,
                          unsigned int b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.$PTX$.$PTX$.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

// Brings lines of an operand to shared memory, of which so many elements of so many lines are
// there, and zeros around them.  WIDTH elements are read at once: 16 bytes and 4 in the background.
template <int LINES, int LINE, int PITCH, int WIDTH>
MD_FUNCTION void load(unsigned char *to, const T *from, long long step, int lines, int elements) {
  enum { PIECE = WIDTH == 1 ? 2 : WIDTH, PIECES = LINE / PIECE };
  enum { TURNS = (LINES * PIECES + THREADS - 1) / THREADS };
  #pragma unroll 8
  for (int i = 0; i < TURNS; i++) {
    const int piece = threadIdx.x + i * THREADS, line = piece / PIECES;
    const int first = piece % PIECES * PIECE;
    if (LINES * PIECES % THREADS != 0 && line >= LINES) break;
    unsigned char *const at = to + line * PITCH + first * 2;
    const bool inside = line < lines && first < elements;
    const T *const element = from + (inside ? line * step + first : 0);
    if (WIDTH == 8) {
      copy<T>((unsigned int)__cvta_generic_to_shared(at), element, inside);
    } else if (WIDTH == 2) {
      md_copy_if<4>(at, element, inside);
    } else {
      const unsigned int low = inside ? element[0].bits : 0;
      const unsigned int high = inside && first + 1 < elements ? element[1].bits : 0;
      *(unsigned int *)at = high << 16 | low;
    }
  }
}
