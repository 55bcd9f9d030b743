//# Convolutions of single positions (a window of one tap, no stride, no padding): every image is a matrix as it lies.

//@ half_step
unrolled for (int p = 0; p < LINES / 16; ++p) {
  unsigned a_part[BLOCKS_M][4], b_part[BLOCKS_N][2];
  unrolled for (int i = 0; i < BLOCKS_M; ++i) load_matrices<false>(a_part[i], a_lane + i * 16 * A_PITCH + p * 16);
  unrolled for (int j = 0; j < BLOCKS_N; j += 4)
    unrolled for (int r = 0; r < 2; ++r) {  // four positions of two channels; the instruction takes channels in pairs
      const Element* from = b_lane + (p * 16 + r * 8) * B_PITCH + j * 8;
      const auto low = *reinterpret_cast<const Pack<unsigned, 2>*>(from);
      const auto high = *reinterpret_cast<const Pack<unsigned, 2>*>(from + B_PITCH);
      unrolled for (int t = 0; t < 4; ++t)
        b_part[j + t][r] = __byte_perm(low.at[t / 2], high.at[t / 2], t % 2 ? 0x7632 : 0x5410);
    }
  unrolled for (int i = 0; i < BLOCKS_M; ++i)
    unrolled for (int j = 0; j < BLOCKS_N; ++j) mma(sums[i][j], a_part[i], b_part[j][0], b_part[j][1]);
}
