//# Tiles of a product of which f16 parts do not hold enough, made in f32, as text.

//# Of scores whose softmax is multiplied: the greatest of each row; and rows' sums.
//@ of_scores
if (thread < ROWS) {
  const int groups = (K + 63) / 64;
  const float* of_groups = greatest + ((size_t)z * M + min(m0 + thread, M - 1)) * groups;
  float most = -INFINITY;
  for (int i = 0; i < groups; ++i) most = fmaxf(most, of_groups[i]);
  greatest_of[thread] = most;
}
float total[8] = {}, some_total[8] = {};

//@ add_totals
    unrolled for (int i = 0; i < 8; ++i) total[i] += some_total[i], some_total[i] = 0.f;

//@ greatest_of_rows
unrolled for (int i = 0; i < 8; ++i) {  // of the 64 columns that 16 lanes have
  unrolled for (int away = 1; away < 16; away *= 2) most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], away));
  const int m = m0 + m_of + i;
  if (n_of == 0 && m < M) greatest[((size_t)z * M + m) * tiles_n + n0 / COLUMNS] = most[i];
}
