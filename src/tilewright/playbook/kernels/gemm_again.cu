  // Small parts of huge numbers overflow too, some the other way, which makes infinity less infinity. A sum that is no
  // number is added up again as f32 arithmetic does.
  const auto again = [&](index_t m, index_t n) {
    float sum = 0.f;
#pragma unroll 1
    for (index_t k = k_begin; k < k_end; ++k) {
$body
    }
    return sum;
  };
