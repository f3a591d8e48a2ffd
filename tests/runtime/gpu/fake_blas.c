/* A cuBLASLt for tests: it multiplies float16 bit patterns as integers of 16 bits (what is wanted is which elements meet),
 * by columns as the real one, and writes down what it is asked for. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int transpose[2], epilogue; const int16_t *bias; } Description;
typedef struct { uint64_t rows, columns; int64_t step; int kind; } Layout;
int fake_status = 0, fake_refuses = 0, fake_found = 1, fake_matmuls = 0, fake_kind = 0, fake_epilogue = 0, fake_reductions = 0;
uint64_t fake_workspace = 0, fake_limit = 0, fake_alignment = 0;
void *fake_stream = 0, *fake_given = 0;
size_t fake_given_bytes = 0;
char fake_algorithm[64];

int cublasLtCreate(void **handle) { *handle = (void *)0xb1a5; return fake_refuses; }
int cublasLtMatmulDescCreate(Description **made, int compute, int scale) { *made = calloc(1, sizeof(Description)); return !(compute == 68 && scale == 0); }
int
cublasLtMatmulDescSetAttribute(Description *to, int attribute, const void *value, size_t bytes)
{
    switch (attribute) {
    case 3: case 4: memcpy(&to->transpose[attribute - 3], value, bytes); return bytes != 4;
    case 7: memcpy(&to->epilogue, value, bytes); return bytes != 4;
    case 8: memcpy(&to->bias, value, bytes); return bytes != 8;
    }
    return 7;
}
int
cublasLtMatrixLayoutCreate(Layout **made, int kind, uint64_t rows, uint64_t columns, int64_t step)
{
    *made = malloc(sizeof(Layout));
    **made = (Layout){rows, columns, step, kind};
    fake_kind = kind;
    return 0;
}
int cublasLtMatmulPreferenceCreate(void **made) { *made = (void *)0x9e; return 0; }
int
cublasLtMatmulPreferenceSetAttribute(void *to, int attribute, const void *value, size_t bytes)
{
    if (attribute == 1) { memcpy(&fake_limit, value, bytes); return bytes != 8; }
    if (attribute == 3) { memcpy(&fake_reductions, value, bytes); return bytes != 4; }
    if (attribute >= 5 && attribute <= 8) { memcpy(&fake_alignment, value, bytes); return bytes != 4; }
    return 7;
}
int
cublasLtMatmulAlgoGetHeuristic(void *handle, Description *how, Layout *a, Layout *b, Layout *c, Layout *d, void *wishes, int most,
                               char *result, int *count)
{
    memset(result, 0, 96);
    memset(result, 0xa1, 64);
    memcpy(result + 64, &fake_workspace, 8);
    memcpy(result + 72, &fake_status, 4);
    *count = fake_found;
    return handle != (void *)0xb1a5 || wishes != (void *)0x9e || most != 1;
}
static int16_t
at(const int16_t *matrix, const Layout *layout, int transposed, uint64_t row, uint64_t column)
{
    return transposed ? matrix[row * layout->step + column] : matrix[column * layout->step + row];
}
int
cublasLtMatmul(void *handle, Description *how, const float *alpha, const int16_t *a, Layout *la, const int16_t *b, Layout *lb,
               const float *beta, const int16_t *c, Layout *lc, int16_t *d, Layout *ld, const void *algorithm, void *workspace,
               size_t bytes, void *stream)
{
    if (fake_refuses || *alpha != 1.0f || *beta != 0.0f || c != d) {
        return 15;
    }
    fake_matmuls++;
    fake_stream = stream;
    fake_given = workspace;
    fake_given_bytes = bytes;
    fake_epilogue = how->epilogue;
    memcpy(fake_algorithm, algorithm, 64);
    uint64_t terms = how->transpose[0] ? la->rows : la->columns;
    for (uint64_t j = 0; j < ld->columns; j++) {
        for (uint64_t i = 0; i < ld->rows; i++) {
            int16_t sum = how->epilogue == 4 ? how->bias[i] : 0;
            for (uint64_t k = 0; k < terms; k++) {
                sum += at(a, la, how->transpose[0], i, k) * at(b, lb, how->transpose[1], k, j);
            }
            d[j * ld->step + i] = sum;
        }
    }
    return 0;
}
