def tmascale(x):
    return x * 1.5 + 0.25
