/* The practical floor of W1 and W2: softmax regression by minibatch SGD with a proximal term, written by hand for one
 * core. FEATURES, CLASSES and BATCH are known when it is compiled, so that the products stay in vector registers.
 * Weights are [CLASSES][WIDTH], WIDTH being FEATURES filled up to whole vectors; the data's rows too.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define LANES 16
#define VECTORS ((FEATURES + LANES - 1) / LANES)
#define WIDTH (VECTORS * LANES)

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4 * LANES)));
typedef struct { vec weight[CLASSES][VECTORS]; float bias[LANES * ((CLASSES + LANES - 1) / LANES)]; } model;

static uint64_t state;

static uint32_t below(uint32_t n) {
    state ^= state << 13; state ^= state >> 7; state ^= state << 17;
    return (uint32_t)(((state >> 32) * (uint64_t)n) >> 32);
}

static void shuffle(int32_t *order, int n) {
    for (int i = n - 1; i > 0; i--) {
        int j = below(i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

static float sum(vec v) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += v[i];
    return total;
}

/* score[b][c] = weight[c] . x[b], in tiles of TILE x TILE sums that stay in registers */
#define TILE 5
static void forward(const model *w, const vec *const x[BATCH], float score[BATCH][CLASSES]) {
    for (int b = 0; b < BATCH; b += TILE)
        for (int c = 0; c < CLASSES; c += TILE) {
            vec total[TILE][TILE] = {0};
            for (int f = 0; f < VECTORS; f++)
                for (int i = 0; i < TILE; i++)
                    for (int j = 0; j < TILE; j++) total[i][j] += x[b + i][f] * w->weight[c + j][f];
            for (int i = 0; i < TILE; i++)
                for (int j = 0; j < TILE; j++) score[b + i][c + j] = sum(total[i][j]);
        }
}

static void step(model *w, const model *start, const vec *const x[BATCH], const int32_t *label, int n, float rate,
                 float mu) {
    float d[BATCH][CLASSES];
    forward(w, x, d);
    for (int b = 0; b < BATCH; b++) {
        float most = -INFINITY, total = 0;
        for (int c = 0; c < CLASSES; c++) { d[b][c] += w->bias[c]; most = fmaxf(most, d[b][c]); }
        for (int c = 0; c < CLASSES; c++) { d[b][c] = expf(d[b][c] - most); total += d[b][c]; }
        for (int c = 0; c < CLASSES; c++) d[b][c] *= (b < n ? rate / n : 0) / total;
        if (b < n) d[b][label[b]] -= rate / n;
    }
    float keep = 1 - rate * mu, pull = rate * mu;
    for (int c = 0; c < CLASSES; c++) {
        w->bias[c] = keep * w->bias[c] + pull * start->bias[c];
        for (int b = 0; b < BATCH; b++) w->bias[c] -= d[b][c];
    }
    for (int f = 0; f < VECTORS; f++) {
        vec sample[BATCH];
        for (int b = 0; b < BATCH; b++) sample[b] = x[b][f];
        for (int c = 0; c < CLASSES; c++) {
            vec new = keep * w->weight[c][f] + pull * start->weight[c][f];
            for (int b = 0; b < BATCH; b++) new -= d[b][c] * sample[b];
            w->weight[c][f] = new;
        }
    }
}

/* One round: every party of the cohort from the shared model; the mean by samples replaces it. */
void round_(float *shared_, const float *x_, const int32_t *y, const int32_t *offset, const int32_t *length,
            const int32_t *cohort, int parties, int epochs, float rate, float mu, uint64_t seed, float *scratch,
            int32_t *order) {
    model *shared = (model *)shared_, *w = (model *)scratch, *mean = w + 1;
    const vec *x = (const vec *)x_;
    double all = 0;
    for (int i = 0; i < parties; i++) all += length[cohort[i]];
    memset(mean, 0, sizeof *mean);
    for (int i = 0; i < parties; i++) {
        int k = cohort[i], n = length[k];
        state = (seed + 1) * 0x9E3779B97F4A7C15ull ^ (uint64_t)(k + 1) * 0xBF58476D1CE4E5B9ull;
        *w = *shared;
        for (int j = 0; j < n; j++) order[j] = offset[k] + j;
        for (int e = 0; e < epochs; e++) {
            shuffle(order, n);
            for (int at = 0; at < n; at += BATCH) {
                const vec *rows[BATCH];
                int32_t label[BATCH];
                int here = n - at < BATCH ? n - at : BATCH;
                for (int b = 0; b < BATCH; b++) {
                    int row = order[at + (b < here ? b : 0)];
                    rows[b] = x + (size_t)row * VECTORS;
                    label[b] = y[row];
                }
                step(w, shared, rows, label, here, rate, mu);
            }
        }
        const float *from = (const float *)w;
        float *to = (float *)mean, share = (float)(n / all);
        for (size_t j = 0; j < sizeof *w / sizeof(float); j++) to[j] += share * from[j];
    }
    *shared = *mean;
}

int width(void) { return WIDTH; }
int floats(void) { return (int)(sizeof(model) / sizeof(float)); }

/* a = b + s * c: seconds of one pass over three arrays of n floats */
double triad(float *restrict a, const float *restrict b, const float *restrict c, float s, size_t n) {
    struct timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    for (size_t i = 0; i < n; i++) a[i] = b[i] + s * c[i];
    clock_gettime(CLOCK_MONOTONIC, &t1);
    return t1.tv_sec - t0.tv_sec + 1e-9 * (t1.tv_nsec - t0.tv_nsec);
}
