def hypot16(x, y):
    return x * y.abs()
