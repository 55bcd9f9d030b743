def row_quotient(x, s):
    return x / s[:, None]
