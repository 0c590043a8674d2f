#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif
#include "tiles.h"

#if HAVE_CATTN_AMX
#  include <immintrin.h>
#  include <stdint.h>

#  include "cpu.h"

enum { TILE_ROWS = 16, TILE_ROW_BYTES = 64, N_TILES = 8 };

const char *bench_tiles_unusable(void)
{
    return cattn_cpu_features() & CATTN_CPU_AMX ? NULL : "not in this CPU, not allowed by the system, or masked";
}

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Numbers of both signs, 0.5 to 1. */
static void fill_tiles(struct tile_config *config, uint16_t *tiles, int n_values)
{
    uint32_t x = 1;

    *config = (struct tile_config){.palette = 1};
    for (int i = 0; i < N_TILES; i++) {
        config->row_bytes[i] = TILE_ROW_BYTES;
        config->rows[i] = TILE_ROWS;
    }
    for (int i = 0; i < n_values; i++) {
        x = x * UINT32_C(1664525) + UINT32_C(1013904223);
        tiles[i] = (uint16_t)(0x3f00 | (x >> 16 & 0x807f));
    }
    __asm__ volatile("" : : "r"(config), "r"(tiles) : "memory"); /* what loads tiles does not say that it reads */
}

/* Four sums of two by two tiles, as in a product of matrices. */
__attribute__((target("amx-tile,amx-bf16"))) double bench_tiles_multiply_add(size_t n)
{
    enum { VALUES = TILE_ROWS * TILE_ROW_BYTES / 2 };
    struct tile_config config;
    uint16_t tiles[4 * VALUES];

    fill_tiles(&config, tiles, 4 * VALUES);
    _tile_loadconfig(&config);
    _tile_loadd(4, tiles, TILE_ROW_BYTES);
    _tile_loadd(5, tiles + VALUES, TILE_ROW_BYTES);
    _tile_loadd(6, tiles + 2 * VALUES, TILE_ROW_BYTES);
    _tile_loadd(7, tiles + 3 * VALUES, TILE_ROW_BYTES);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t round = 0; round < n; round++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return (double)n * 4.0 * 2.0 * TILE_ROWS * VALUES;
}
#else
const char *bench_tiles_unusable(void)
{
    return "not in this build";
}

double bench_tiles_multiply_add(size_t n)
{
    (void)n;
    return 0.0;
}
#endif
